"""Pipes as sources: what they hold is unknown, so that nothing made of one is taken for made of another, and none is read twice."""

import os
import threading

import pytest

RUN = "1 Q0 d1 1 2.0 x\n1 Q0 d2 2 1.0 x\n"


@pytest.fixture
def pipe(tmp_path):
    """A named pipe from which a text can be read once."""

    def fill(text):
        path = tmp_path / "pipe.trec"
        if not path.exists():
            os.mkfifo(path)
        threading.Thread(target=path.write_text, args=(text,), daemon=True).start()
        return path

    return fill


def test_what_another_pipe_holds_is_read_again(pipe, tmp_path, moeir):
    qrels, output = tmp_path / "qrels.tsv", tmp_path / "scores.tsv"
    qrels.write_text("1 0 d1 1\n", encoding="utf-8")
    command = ("evaluate", "--qrels", qrels, "--measure", "RR@10", "--output", output)
    assert moeir(*command, "--run", pipe(RUN)).code == 0
    before = output.read_text(encoding="utf-8")
    refused = moeir(*command, "--run", pipe(""))
    assert refused.code == 2 and "exists, and may differ from what these settings and sources make; --force replaces it" in refused.stderr
    assert output.read_text(encoding="utf-8") == before
    assert moeir(*command, "--force", "--run", pipe(RUN.replace("d1", "d3"))).code == 0
    assert output.read_text(encoding="utf-8") != before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("convert", "--input", "PIPE", "--to", "run"), "a pipe can be read once; give its format with --from"),
        (
            ("convert", "--input", "PIPE", "--from", "run", "--to", "texts", "--output", "x", "--dry-run"),
            "--to texts: pipe.trec is",
        ),
        (
            ("encode", "--model", "CKPT", "--corpus", "PIPE", "--shard", "0/2", "--output", "enc", "--dry-run"),
            "counted before they are read",
        ),
        (
            ("generate-queries", "--model", "t5", "--corpus", "PIPE", "--shard", "0/2", "--output", "q.jsonl", "--dry-run"),
            "counted before they are read",
        ),
    ],
)
def test_what_would_be_read_twice_is_refused_before_it_is_read(arguments, message, came_checkpoint, tmp_path, moeir, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "qrels.tsv").write_text("1 0 d1 1\n", encoding="utf-8")
    os.mkfifo("pipe.trec")  # that nobody writes to: reading it would wait for ever
    result = moeir(*(word.replace("PIPE", "pipe.trec").replace("CKPT", str(came_checkpoint)) for word in arguments))
    assert result.code == 2 and message in result.stderr, result.stderr
