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


MINE = "mine-negatives --run run.trec --qrels qrels --output -"
TEACHER = "--positive-grade 2 --relative-margin 0.05 --teacher"


@pytest.fixture(autouse=True)
def room(tmp_path, monkeypatch):
    """A corpus, a query with its judgements, and a run that scores owl (a positive), twin, q1, asked, cat and hen 8 to 3."""
    monkeypatch.chdir(tmp_path)
    Path("corpus.jsonl").write_text("".join(json.dumps({"_id": name, "text": text}) + "\n" for name, text in CORPUS.items()))
    Path("queries.tsv").write_text("q1\twho hunts mice\n")
    Path("qrels").write_text("q1 0 owl 2\nq1 0 hen 1\nq1 0 cat 0\n")
    write_run("run.trec", {name: 9 - rank for rank, name in enumerate(CORPUS, 1)})


def write_run(name, scores):
    Path(name).write_text("".join(f"q1 Q0 {document} 1 {score} x\n" for document, score in scores.items()))


@pytest.fixture
def mine(run):
    """`mine(flags)`: the negatives of the only query, and the messages."""

    def mine_negatives(flags=""):
        result = run(f"{MINE} {flags}")
        return json.loads(result.stdout)["negative_ids"], result.stderr

    return mine_negatives


@pytest.mark.parametrize(("flags", "negatives", "words"), [
    ("", "twin asked cat", "documents that are no negatives: 1 are their query (--keep-own-document keeps them)"),
    ("--keep-own-document", "twin q1 asked cat", ""),
    ("--corpus corpus.jsonl", "asked cat", "1 have the text of a positive"),
    ("--corpus corpus.jsonl --queries queries.tsv", "cat", "2 are their query"),
    ("--corpus corpus.jsonl --queries queries.tsv --keep-own-document", "q1 asked cat", ""),
    ("--positive-grade 2", "twin asked cat", "1 are judged better than --negative-grade"),
    ("--positive-grade 2 --negative-grade 1", "twin asked cat hen", ""),
    ("--positive-grade 2 --margin 1.5", "asked cat", "1 score too near to a positive"),
    ("--positive-grade 2 --relative-margin 0.375", "cat", ""),  # below 5
    (f"{TEACHER} teacher.trec", "asked cat", "2 score too near"),
    (f"{TEACHER} teacher.trec", "asked cat", "; 1 negatives stay without a score of --teacher"),  # asked
    (f"{TEACHER} whole.trec", "asked cat", ""),
])  # fmt: skip
def test_which_documents_are_no_negatives_and_the_log_says_why(flags, negatives, words, mine):
    scores = {"owl": -1, "hen": 9, "twin": -1.01, "cat": -3}
    write_run("teacher.trec", scores)
    write_run("whole.trec", scores | {"asked": -2})
    mined, log = mine(flags)
    assert mined == negatives.split() and words in log and "keep all candidates" not in log
    assert not flags.endswith("--negative-grade 1") or "--negative-grade" not in log
    assert ("without a score" in log) == ("teacher.trec" in flags)


def test_a_query_without_negatives_or_scores_to_compare_is_counted(run, refuse):
    Path("qrels").write_text("q1 0 asked 1\nq2 0 owl 1\n")
    with open("run.trec", "a") as file:
        file.write("q2 Q0 cat 1 1 bm25\nq2 Q0 owl 2 0 bm25\n")
    result = run(f"{MINE} --margin 0")
    assert "1 without negatives" in result.stderr and json.loads(result.stdout)["query_id"] == "q1"
    Path("teacher.trec").write_text("q1 Q0 owl 1 -1 ce\nq1 Q0 hen 1 9 ce\nq2 Q0 owl 1 1 ce\n")
    words = "1 examples keep all candidates, as no positive of theirs has a score to compare with"
    assert words in run(f"{MINE} --margin 0 --teacher teacher.trec").stderr
    Path("teacher.trec").write_text("q7 Q0 owl 1 1 ce\n")
    refuse(3, "teacher.trec: has no positive of qrels; do the ids agree?", f"{MINE} --margin 0 --teacher teacher.trec")


@pytest.mark.parametrize(("flags", "words"), [
    ("--teacher run.trec", "--teacher needs --margin or --relative-margin"),
    ("--relative-margin 1.5", "--relative-margin 1.5: expected 0 to 1"),
    ("--negative-grade 1", "--negative-grade 1: expected less than --positive-grade 1"),
    ("--queries queries.tsv", "--queries needs --corpus"),
    ("--corpus -", "--corpus -: is read more than once, and a pipe can be read once; name a file"),
])  # fmt: skip
def test_settings_that_contradict_are_refused(flags, words, refuse):
    refuse(2, words, f"{MINE} {flags}")
