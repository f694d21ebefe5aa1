"""Evaluation and mining with answers, where a document that contains an answer is relevant."""

import json

import pytest

from moeir.records import runs
from moeir.records.runs import Run

ANSWERS = {"q1": ["hollow tree"], "q2": ["SCENT"], "q3": ["no such word"]}
SETS = {"q1": "x", "q2": "x", "q3": "y"}


@pytest.fixture
def room(tmp_path, monkeypatch, toy):
    """Questions in every format, runs, and the toy corpus."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus.jsonl").symlink_to(toy / "corpus.jsonl")
    questions = [{"_id": query, "text": "who is it", "answers": values, "set": SETS[query]} for query, values in ANSWERS.items()]
    (tmp_path / "asked.jsonl").write_text("".join(json.dumps(one) + "\n" for one in questions))
    entries = [{"question": "who is it", "answers": values, "positive_ctxs": []} for values in ANSWERS.values()]
    (tmp_path / "asked.json").write_text(json.dumps(entries))
    patterns = enumerate(["hollow (oak|tree)", "(scent", "o[wx]l"])
    (tmp_path / "regex.jsonl").write_text("".join(json.dumps({"_id": i, "text": "who", "answers": [one]}) + "\n" for i, one in patterns))
    hits = {"q1": {"bat": 3, "owl": 2}, "q2": {"ant": 2, "fox": 1}, "q3": {"owl": 1}}
    runs.write_run(Run.from_hits(hits), "one.trec")
    runs.write_run(Run.from_hits({"q1": {"owl": 3, "bat": 2}, "q2": {"fox": 1}}), "two.trec")
    runs.write_run(Run.from_hits({str(number): values for number, values in enumerate(hits.values())}), "numbered.trec")
    (tmp_path / "qrels").write_text("q1 0 owl 1\nq2 0 ant 1\nq3 0 eel 1\n")
    return tmp_path


def run_evaluate(moeir, *arguments):
    result = moeir("evaluate", "--corpus", "corpus.jsonl", "--form", "tsv", *arguments)
    assert result.code == 0, result.stderr
    return [line.split("\t") for line in result.stdout.splitlines()], result.stderr


def test_success_by_answers(room, moeir):
    rows, result = run_evaluate(
        moeir, "--answers", "asked.jsonl", "--run", "one.trec", "--measure", "Success@1", "--measure", "RR@20", "-q"
    )
    assert rows == [
        *(["Success@1", "q1", "0.000000"], ["Success@1", "q2", "1.000000"]),
        *(["Success@1", "q3", "0.000000"], ["Success@1", "all", "0.333333"]),
        *(["RR@20", "q1", "0.500000"], ["RR@20", "q2", "1.000000"]),
        *(["RR@20", "q3", "0.000000"], ["RR@20", "all", "0.500000"]),
    ]
    assert result == "one: 3 of 3 questions, 0 without hits, 0 without answers\n"
    rows, _ = run_evaluate(moeir, "--answers", "asked.jsonl", "--run", "one.trec", "--run", "two.trec")
    assert rows == [
        *(["one", "Success@20", "all", "0.666667"], ["one", "Success@100", "all", "0.666667"]),
        *(["two", "Success@20", "all", "0.333333"], ["two", "Success@100", "all", "0.333333"]),
    ]


def test_dprs_questions_are_named_by_their_place(room, moeir):
    rows, _ = run_evaluate(moeir, "--answers", "asked.json", "--run", "numbered.trec")
    assert rows == [["Success@20", "all", "0.666667"], ["Success@100", "all", "0.666667"]]


def test_success_by_regular_expressions_says_which_are_none(room, moeir):
    rows, stderr = run_evaluate(moeir, "--answers", "regex.jsonl", "--match", "regex", "--run", "numbered.trec", "-m", "Success@5", "-q")
    assert [value for _, _, value in rows] == ["1.000000", "0.000000", "1.000000", "0.666667"]
    assert stderr.startswith(
        "regex.jsonl: 1 answers are not valid regular expressions and match nothing; the first: '(scent' of question 1"
    )


def test_means_by_group(room, moeir):
    rows, _ = run_evaluate(moeir, "--answers", "asked.jsonl", "--run", "one.trec", "-m", "Success@20", "--group-by", "set")
    expected = [["set=x", "1.000000"], ["set=y", "0.000000"], ["macro", "0.500000"], ["all", "0.666667"]]
    assert [row[1:] for row in rows] == expected
    command = ("evaluate", "--qrels", "qrels", "--run", "one.trec", "-m", "RR", "--queries", "asked.jsonl", "--group-by")
    result = moeir(*command, "set")
    assert [line.split() for line in result.stdout.splitlines()[2:]] == [
        *(["set=x", "2", "one", "0.7500"], ["set=y", "1", "one", "0.0000"]),
        *(["macro", "2", "one", "0.3750"], ["micro", "3", "one", "0.5000"]),
    ]
    words = "error: asked.jsonl:1: field 'relation' of 'q1' is not a printable string or a whole number: null\n"
    assert moeir(*command, "relation").stderr == words


EVALUATE = ("evaluate", "--run", "one.trec")
ANSWER_FLAGS = ("--answers", "asked.jsonl", "--corpus", "corpus.jsonl")
MINE = ("mine-negatives", "--run", "one.trec", "--qrels", "qrels", "--exclude-answers")
REFUSALS = [
    ((*EVALUATE,), 2, "evaluate needs --qrels, or --answers and --corpus"),
    ((*EVALUATE, "--answers", "asked.jsonl"), 2, "--answers needs --corpus"),
    ((*EVALUATE, *ANSWER_FLAGS, "-m", "nDCG@10"), 2, "measure nDCG@10 cannot be computed from answers"),
    ((*EVALUATE, "--answers", "corpus.jsonl", "--corpus", "corpus.jsonl"), 3, "corpus.jsonl: question 'owl' has no answers"),
    ((*EVALUATE, "--answers", "asked.jsonl", "--corpus", "asked.jsonl"), 3, "asked.jsonl: has no document 'ant', which a run names"),
    ((*EVALUATE, "--answers", "asked.json", "--corpus", "corpus.jsonl"), 3, "one.trec: run of another collection"),
    ((*EVALUATE, "--qrels", "qrels", "--group-by", "set"), 2, "--group-by needs --queries or --answers"),
    ((*EVALUATE, "--qrels", "other", "--queries", "asked.jsonl", "--group-by", "set"), 3, "asked.jsonl: query 'q4' is judged but not"),
    ((*MINE, "asked.json", "--corpus", "corpus.jsonl"), 3, "asked.json: has no question 'q1', for which negatives are mined"),
]  # fmt: skip


@pytest.mark.parametrize(("command", "code", "words"), REFUSALS, ids=[words for _, _, words in REFUSALS])
def test_what_cannot_be_done_ends_with_one_line(room, moeir, command, code, words):
    (room / "other").write_text("q1 0 owl 1\nq4 0 owl 1\n")
    result = moeir(*command, "--output", "out")
    assert (result.code, result.stderr.count("error: ")) == (code, 1), result.stderr
    assert words in result.stderr.splitlines()[-1]
    assert not (room / "out").exists()


def test_documents_with_an_answer_are_no_negatives(room, moeir):
    (room / "judged").write_text("q1 0 fox 1\nq2 0 eel 1\nq3 0 eel 1\n")
    command = ("mine-negatives", "--run", "one.trec", "--run", "two.trec", "--qrels", "judged")
    plain = moeir(*command, "--output", "plain.jsonl")
    assert (plain.code, plain.stderr.count("answer")) == (0, 0)
    result = moeir(*command, "--exclude-answers", "asked.jsonl", "--corpus", "corpus.jsonl", "--output", "out.jsonl")
    assert "; documents that are no negatives: 2 contain an answer\n" in result.stderr
    negatives = {one["query_id"]: one["negative_ids"] for one in map(json.loads, (room / "out.jsonl").read_text().splitlines())}
    assert negatives == {"q1": ["bat"], "q2": ["fox"], "q3": ["owl"]}
    assert json.loads((room / "out.jsonl.manifest.json").read_text())["counts"]["with_answers"] == 2
