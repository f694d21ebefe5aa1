"""`mine-negatives` through the command line: which candidates are no negatives, and what the log says of them."""

import json
from pathlib import Path

import pytest

CORPUS = {
    "owl": "An owl hunts mice.",
    "twin": "An  OWL hunts mice.",
    "q1": "who hunts mice",
    "asked": "Who hunts mice",
    "cat": "A cat waits.",
    "hen": "A hen lays.",
}


@pytest.fixture
def mine(tmp_path, moeir, monkeypatch):
    """`mine(*flags)`: the negatives of the only query, and the messages."""
    monkeypatch.chdir(tmp_path)
    Path("corpus.jsonl").write_text("".join(json.dumps({"_id": name, "text": text}) + "\n" for name, text in CORPUS.items()))
    Path("queries.tsv").write_text("q1\twho hunts mice\n")
    Path("qrels").write_text("q1 0 owl 2\nq1 0 hen 1\nq1 0 cat 0\n")
    Path("run.trec").write_text("".join(f"q1 Q0 {name} {rank} {9 - rank} bm25\n" for rank, name in enumerate(CORPUS, 1)))

    def mined(*flags):
        result = moeir("mine-negatives", "--run", "run.trec", "--qrels", "qrels", *flags, "--output", "-")
        assert result.code == 0, result.stderr
        return json.loads(result.stdout)["negative_ids"], result.stderr

    return mined


def test_which_documents_are_no_negatives_and_the_log_says_why(mine):
    negatives, log = mine()
    assert negatives == ["twin", "asked", "cat"]
    assert "documents that are no negatives: 1 are their query (--keep-own-document keeps them)" in log
    assert mine("--keep-own-document")[0] == ["twin", "q1", "asked", "cat"]
    negatives, log = mine("--corpus", "corpus.jsonl")
    assert negatives == ["asked", "cat"] and "1 have the text of a positive" in log
    negatives, log = mine("--corpus", "corpus.jsonl", "--queries", "queries.tsv")
    assert negatives == ["cat"] and "2 are their query" in log
    assert mine("--corpus", "corpus.jsonl", "--queries", "queries.tsv", "--keep-own-document")[0] == ["q1", "asked", "cat"]
    negatives, log = mine("--positive-grade", 2)
    assert "hen" not in negatives and "1 are judged better than --negative-grade" in log
    negatives, log = mine("--positive-grade", 2, "--negative-grade", 1)
    assert "hen" in negatives and "--negative-grade" not in log


def test_candidates_too_near_to_a_positive_are_dropped_by_the_run_or_a_teacher(mine, moeir):
    """The run scores owl (the positive), twin, q1, asked, cat and hen 8 to 3."""
    Path("teacher.trec").write_text(
        "".join(f"q1 Q0 {name} 1 {score} ce\n" for name, score in (("owl", -1), ("hen", 9), ("twin", -1.01), ("cat", -3)))
    )
    negatives, log = mine("--positive-grade", 2, "--margin", 1.5)
    assert negatives == ["asked", "cat"] and "1 score too near to a positive" in log
    assert mine("--positive-grade", 2, "--relative-margin", 0.375)[0] == ["cat"]  # below 5
    negatives, log = mine("--positive-grade", 2, "--relative-margin", 0.05, "--teacher", "teacher.trec")
    assert negatives == ["asked", "cat"] and "2 score too near" in log and "keep all candidates" not in log
    assert "; 1 negatives stay without a score of --teacher" in log  # asked
    Path("whole.trec").write_text(Path("teacher.trec").read_text() + "q1 Q0 asked 1 -2 ce\n")
    assert "without a score" not in mine("--positive-grade", 2, "--relative-margin", 0.05, "--teacher", "whole.trec")[1]
    assert "without a score" not in mine("--positive-grade", 2, "--relative-margin", 0.375)[1]  # no teacher
    Path("qrels").write_text("q1 0 asked 1\nq2 0 owl 1\n")
    with open("run.trec", "a") as run:
        run.write("q2 Q0 cat 1 1 bm25\nq2 Q0 owl 2 0 bm25\n")
    flags = ("mine-negatives", "--run", "run.trec", "--qrels", "qrels", "--output", "-", "--margin")
    result = moeir(*flags, 0)
    assert "1 without negatives" in result.stderr and json.loads(result.stdout)["query_id"] == "q1"
    with open("teacher.trec", "a") as run:
        run.write("q2 Q0 owl 1 1 ce\n")
    assert (
        "1 examples keep all candidates, as no positive of theirs has a score to compare with"
        in moeir(*flags, 0, "--teacher", "teacher.trec").stderr
    )
    Path("teacher.trec").write_text("q7 Q0 owl 1 1 ce\n")
    result = moeir(*flags, 0, "--teacher", "teacher.trec")
    assert result.code == 3 and "teacher.trec: has no positive of qrels; do the ids agree?" in result.stderr


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--teacher", "run.trec"), "--teacher needs --margin or --relative-margin"),
        (("--relative-margin", 1.5), "--relative-margin 1.5: expected 0 to 1"),
        (("--negative-grade", 1), "--negative-grade 1: expected less than --positive-grade 1"),
        (("--queries", "queries.tsv"), "--queries needs --corpus"),
        (("--corpus", "-"), "--corpus -: is read more than once, and a pipe can be read once; name a file"),
    ],
)
def test_settings_that_contradict_are_refused(flags, words, mine, moeir):
    result = moeir("mine-negatives", "--run", "run.trec", "--qrels", "qrels", *flags, "--output", "-")
    assert result.code == 2 and words in result.stderr
