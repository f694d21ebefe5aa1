"""Pipes as sources: what they hold is unknown, so that nothing made of one is taken for made of another, and none is read twice."""

import os
import threading
from pathlib import Path

import pytest

RUN = "1 Q0 d1 1 2.0 x\n1 Q0 d2 2 1.0 x\n"


@pytest.fixture
def fill(work_folder):
    """`fill(text)` makes the named pipe `pipe.trec`, from which the text can be read once."""
    os.mkfifo("pipe.trec")
    return lambda text: threading.Thread(target=Path("pipe.trec").write_text, args=(text,), daemon=True).start()


def test_what_another_pipe_holds_is_read_again(fill, run, refuse):
    Path("qrels.tsv").write_text("1 0 d1 1\n", encoding="utf-8")
    command, output = "evaluate --qrels qrels.tsv --measure RR@10 --run pipe.trec --output scores.tsv", Path("scores.tsv")
    fill(RUN)
    run(command)
    before = output.read_text(encoding="utf-8")
    fill("")
    refuse(2, "exists, and may differ from what these settings and sources make; --force replaces it", command)
    assert output.read_text(encoding="utf-8") == before
    fill(RUN.replace("d1", "d3"))
    run(f"{command} --force")
    assert output.read_text(encoding="utf-8") != before


@pytest.mark.parametrize(("command", "words"), [
    ("convert --input pipe.trec --from run --to texts --output x --dry-run", "--to texts: pipe.trec is"),
    ("encode --model came --corpus pipe.trec --shard 0/2 --output enc2 --dry-run", "counted before they are read"),
    ("generate-queries --model t5 --corpus pipe.trec --shard 0/2 --output q.jsonl --dry-run", "counted before they are read"),
])  # fmt: skip
def test_what_would_be_read_twice_is_refused_before_it_is_read(command, words, work_folder, refuse):
    os.mkfifo("pipe.trec")  # that nobody writes to: reading it would wait for ever
    refuse(2, words, command)
