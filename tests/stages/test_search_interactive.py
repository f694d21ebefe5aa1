"""Interactive search through a pipe and at a terminal."""

import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import CommandResult

SEARCH = ("search", "--dtype", "float32")  # as the documents
Moeir = Callable[..., CommandResult]
TIMING = re.compile(r"\d+\.\d ms .*")


def ask(moeir: Moeir, index: Path, toy: Path, typed: str, *more: object) -> list[str]:
    result = moeir(*SEARCH, "--index", index, "--interactive", "--corpus", toy / "corpus.jsonl", *more, stdin=typed)
    assert result.code == 0, result.stderr
    assert "\x1b" not in result.stdout
    return [TIMING.sub("ms", line) for line in result.stdout.splitlines()]


def test_a_query_shows_documents_ranks_and_matched_terms(bm25_index: Path, toy: Path, moeir: Moeir) -> None:
    lines = ask(moeir, bm25_index, toy, "owls hunting mice\n")
    assert lines[0].split()[:2] == ["1", "owl"]
    assert lines[1] == "     Owl: An owl hunts mice at night and sleeps in a hollow tree by day."
    assert lines[2].startswith("     owls 1.") and "mice" in lines[2]
    assert lines[-1] == "2 of 12 documents in ms"


def test_what_is_shown_is_what_search_finds(index: Path, toy: Path, tmp_path: Path, moeir: Moeir) -> None:
    (tmp_path / "q.tsv").write_text("q\twho hunts mice\n")
    completed = moeir(*SEARCH, "--index", index, "--queries", tmp_path / "q.tsv", "--output", tmp_path / "runs")
    assert completed.code == 0
    runs = {name: (tmp_path / "runs" / f"{name}.trec").read_text().splitlines() for name in ("fused", "lexical", "local", "global")}
    ranks = {name: {line.split()[2]: line.split()[3] for line in lines} for name, lines in runs.items()}
    heads = [line for line in ask(moeir, index, toy, "who hunts mice\n") if re.match(r" *\d+  \w", line) and " · " in line]
    expected = []
    for line in runs["fused"][:10]:
        _, _, document, rank, score, _ = line.split()
        by = " · ".join(f"{name} {ranks[name][document]}" for name in ("lexical", "local", "global"))
        expected.append(f"{rank:>3}  {document}  {score}   {by}")
    assert heads == expected


def test_commands_change_what_follows(index: Path, toy: Path, moeir: Moeir) -> None:
    typed = ":show 2\nmice\n:expert local\nmice\n:expert all\n:fuse rrf\n:depth 1\nmice\n:explain 1\n\n:help\n:quit\nnever asked\n"
    lines = ask(moeir, index, toy, typed)
    assert lines[0] == "show: 2" and "2 of 12 documents in ms" in lines
    assert "experts: local" in lines and "experts: lexical, local, global" in lines
    assert "fused by rrf" in lines and "depth: 1" in lines
    assert any(line.startswith("  lexical: rank 1, score ") or line.startswith("  lexical: not in its list, part ") for line in lines)
    assert lines[-1] == ":quit         quit, as Ctrl-D does"


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        (":foo\n", ":foo: no such command; :help lists them"),
        (":explain 1\n", ":explain: no query yet; type one first"),
        ("mice\n:explain 99\n", ":explain 99: the last list has no document 99"),
        (":show 0\n", ":show 0: expected at least 1"),
        (":depth x\n", ":depth: expected a whole number, found 'x'"),
        (":expert lexicon\n", "has lexical, local, global"),
        (":fuse rff\n", "did you mean 'rrf'?"),
    ],
)
def test_what_cannot_be_done_is_said_and_asked_again(index: Path, toy: Path, moeir: Moeir, typed: str, words: str) -> None:
    lines = ask(moeir, index, toy, typed + ":help\n")
    assert any(words in line for line in lines)
    assert lines[-1].startswith(":quit")


def test_bytes_that_are_not_utf8_are_searched_as_what_they_could_be(bm25_index: Path, toy: Path) -> None:
    command = [sys.executable, "-m", "moeir", *SEARCH, "--index", str(bm25_index), "--interactive", "--corpus", str(toy / "corpus.jsonl")]
    done = subprocess.run(command, input=b"m\xffice \x1b[31m\nowls \xe9\n:f\x1b[2Joo\n", capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert b"  owl  " in done.stdout and b"\x1b" not in done.stdout and b":f\\x1b[2Joo: no such command" in done.stdout


def test_texts_cannot_write_to_the_terminal(tmp_path: Path, moeir: Moeir) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"_id": "1", "title": "Owls\\u001b[2J", "text": "Mice \\u009b31m and \\u0007 owls"}\n')
    assert moeir("index", "--engine", "bm25", "--corpus", corpus, "--output", tmp_path / "idx").code == 0
    result = moeir("search", "--index", tmp_path / "idx", "--interactive", "--corpus", corpus, stdin="mice\n")
    assert "Owls\\x1b[2J: Mice \\x9b31m and \\x07 owls" in result.stdout and not re.search(r"[\x1b\x9b\x07]", result.stdout)


def test_texts_are_not_needed(index: Path, moeir: Moeir) -> None:
    result = moeir(*SEARCH, "--index", index, "--interactive", "--expert", "global", stdin="mice\n:explain 1")
    assert result.code == 0 and re.search(r"^  global: rank 1, score ", result.stdout, re.MULTILINE)


def test_a_terminal_has_a_prompt_colours_and_ends_with_ctrl_d(bm25_index: Path, toy: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "moeir", *SEARCH, "--index", bm25_index, "--interactive", "--corpus", toy / "corpus.jsonl"]
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "200"}
    with subprocess.Popen(list(map(str, command)), stdin=theirs, stdout=theirs, env=environment) as child:
        os.close(theirs)
        try:
            shown = _type_answers(ours, [b"owl\n", b"\x04"])
            assert child.wait(120) == 0
        finally:
            child.kill()
            os.close(ours)
    assert "\x1b[1;33mowl\x1b[0m" in shown and "\x1b[1;36mowl" in shown


def _type_answers(terminal: int, answers: list[bytes]) -> str:
    """All output of a terminal until it ends, answering each prompt. Output must be read, or the program blocks."""
    shown, prompts, end = "", 0, time.monotonic() + 300
    while time.monotonic() < end:
        if select.select([terminal], [], [], 1)[0]:
            try:
                shown += os.read(terminal, 65536).decode()
            except OSError:
                break
        elif not answers:
            os.write(terminal, b"\x04")  # the first Ctrl-D may have come before the program read the terminal
        while shown.count("query> ") > prompts and answers:
            os.write(terminal, answers.pop(0))
            prompts += 1
    return shown
