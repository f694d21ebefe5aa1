"""`mine-negatives` through the command line: which candidates are no negatives, and what the log says of them."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import CommandResult

Moeir = Callable[..., CommandResult]
CORPUS = {
    "owl": "An owl hunts mice.",
    "twin": "An  OWL hunts mice.",
    "q1": "who hunts mice",
    "asked": "Who hunts mice",
    "cat": "A cat waits.",
    "hen": "A hen lays.",
}


@pytest.fixture
def mine(tmp_path: Path, moeir: Moeir, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[list[str], str]]:
    """`mine(*flags)`: the negatives of the only query, and the messages."""
    monkeypatch.chdir(tmp_path)
    Path("corpus.jsonl").write_text("".join(json.dumps({"_id": name, "text": text}) + "\n" for name, text in CORPUS.items()))
    Path("queries.tsv").write_text("q1\twho hunts mice\n")
    Path("qrels").write_text("q1 0 owl 2\nq1 0 hen 1\nq1 0 cat 0\n")
    Path("run.trec").write_text("".join(f"q1 Q0 {name} {rank} {9 - rank} bm25\n" for rank, name in enumerate(CORPUS, 1)))

    def mined(*flags: object) -> tuple[list[str], str]:
        result = moeir("mine-negatives", "--run", "run.trec", "--qrels", "qrels", *flags, "--output", "-")
        assert result.code == 0, result.stderr
        return json.loads(result.stdout)["negative_ids"], result.stderr

    return mined


def test_the_querys_own_document_is_no_negative_and_the_log_names_the_switch(mine: Callable[..., tuple[list[str], str]]) -> None:
    negatives, log = mine()
    assert negatives == ["twin", "asked", "cat"]
    assert "documents that are no negatives: 1 are their query (--keep-own-document keeps them)" in log
    assert mine("--keep-own-document")[0] == ["twin", "q1", "asked", "cat"]


def test_a_document_of_a_grade_between_is_neither_and_the_log_says_so(mine: Callable[..., tuple[list[str], str]]) -> None:
    negatives, log = mine("--positive-grade", 2)
    assert "hen" not in negatives and "1 are judged better than --negative-grade" in log
    negatives, log = mine("--positive-grade", 2, "--negative-grade", 1)
    assert "hen" in negatives and "--negative-grade" not in log


def test_texts_of_a_positive_and_of_the_query_are_no_negatives(mine: Callable[..., tuple[list[str], str]]) -> None:
    negatives, log = mine("--corpus", "corpus.jsonl")
    assert negatives == ["asked", "cat"] and "1 have the text of a positive" in log
    negatives, log = mine("--corpus", "corpus.jsonl", "--queries", "queries.tsv")
    assert negatives == ["cat"] and "2 are their query" in log
    assert mine("--corpus", "corpus.jsonl", "--queries", "queries.tsv", "--keep-own-document")[0] == ["q1", "asked", "cat"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--negative-grade", 1), "--negative-grade 1: expected less than --positive-grade 1"),
        (("--queries", "queries.tsv"), "--queries needs --corpus"),
        (("--corpus", "-"), "--corpus -: is read more than once, and a pipe can be read once; name a file"),
    ],
)
def test_settings_that_contradict_are_refused(
    flags: tuple[object, ...], words: str, mine: Callable[..., tuple[list[str], str]], moeir: Moeir
) -> None:
    result = moeir("mine-negatives", "--run", "run.trec", "--qrels", "qrels", *flags, "--output", "-")
    assert result.code == 2 and words in result.stderr
