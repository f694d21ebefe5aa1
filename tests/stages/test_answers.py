"""Evaluation and mining with answers, where a document that contains an answer is relevant."""

import json
from pathlib import Path

import pytest

from moeir.artifacts import manifests
from moeir.records import runs
from moeir.records.runs import Run

ANSWERS = {"q1": ["hollow tree"], "q2": ["SCENT"], "q3": ["no such word"]}
SETS = {"q1": "x", "q2": "x", "q3": "y"}


@pytest.fixture(autouse=True)
def room(work_folder):
    """Questions in every format, runs, and the toy corpus."""
    questions = [{"_id": query, "text": "who is it", "answers": values, "set": SETS[query]} for query, values in ANSWERS.items()]
    write_lines("asked.jsonl", questions)
    entries = [{"question": "who is it", "answers": values, "positive_ctxs": []} for values in ANSWERS.values()]
    Path("asked.json").write_text(json.dumps(entries))
    patterns = enumerate(["hollow (oak|tree)", "(scent", "o[wx]l"])
    write_lines("regex.jsonl", [{"_id": number, "text": "who", "answers": [one]} for number, one in patterns])
    hits = {"q1": {"bat": 3, "owl": 2}, "q2": {"ant": 2, "fox": 1}, "q3": {"owl": 1}}
    runs.write_run(Run.from_hits(hits), "one.trec")
    runs.write_run(Run.from_hits({"q1": {"owl": 3, "bat": 2}, "q2": {"fox": 1}}), "two.trec")
    runs.write_run(Run.from_hits({str(number): values for number, values in enumerate(hits.values())}), "numbered.trec")
    for name, judged in {"qrels": "owl ant eel", "judged": "fox eel eel"}.items():
        Path(name).write_text("".join(f"q{number} 0 {document} 1\n" for number, document in enumerate(judged.split(), 1)))
    Path("other").write_text("q1 0 owl 1\nq4 0 owl 1\n")


def write_lines(name, records):
    Path(name).write_text("".join(json.dumps(one) + "\n" for one in records))


BY_ANSWERS = "evaluate --corpus toy/corpus.jsonl --form tsv --answers"


@pytest.mark.parametrize(("flags", "lines"), [
    ("asked.jsonl --run one.trec -m Success@1 -m RR@20 -q", [
        "Success@1 q1 0.000000", "Success@1 q2 1.000000", "Success@1 q3 0.000000", "Success@1 all 0.333333",
        "RR@20 q1 0.500000", "RR@20 q2 1.000000", "RR@20 q3 0.000000", "RR@20 all 0.500000",
    ]),
    ("asked.jsonl --run one.trec --run two.trec", [
        "one Success@20 all 0.666667", "one Success@100 all 0.666667", "two Success@20 all 0.333333", "two Success@100 all 0.333333",
    ]),
    ("asked.json --run numbered.trec", ["Success@20 all 0.666667", "Success@100 all 0.666667"]),  # questions of DPR
    ("regex.jsonl --match regex --run numbered.trec -m Success@5 -q", [
        "Success@5 0 1.000000", "Success@5 1 0.000000", "Success@5 2 1.000000", "Success@5 all 0.666667",
    ]),
    ("asked.jsonl --run one.trec -m Success@20 --group-by set", [
        "Success@20 set=x 1.000000", "Success@20 set=y 0.000000", "Success@20 macro 0.500000", "Success@20 all 0.666667",
    ]),
])  # fmt: skip
def test_success_by_answers(run, flags, lines):
    result = run(f"{BY_ANSWERS} {flags}")
    assert [line.replace("\t", " ") for line in result.stdout.splitlines()] == lines
    if "regex" in flags:
        words = "1 answers are not valid regular expressions and match nothing; the first: '(scent' of question 1"
        assert result.stderr.startswith(f"regex.jsonl: {words}")
    elif "two" not in flags:
        assert result.stderr.endswith(": 3 of 3 questions, 0 without hits, 0 without answers\n")


def test_means_by_group(run, refuse):
    command = "evaluate --qrels qrels --run one.trec -m RR --queries asked.jsonl --group-by"
    assert [line.split() for line in run(f"{command} set").stdout.splitlines()[2:]] == [
        *(["set=x", "2", "one", "0.7500"], ["set=y", "1", "one", "0.0000"]),
        *(["macro", "2", "one", "0.3750"], ["micro", "3", "one", "0.5000"]),
    ]
    refuse(3, "asked.jsonl:1: field 'relation' of 'q1' is not a printable string or a whole number: null", f"{command} relation")


@pytest.mark.parametrize(("command", "code", "words"), [
    ("evaluate", 2, "evaluate needs --qrels, or --answers and --corpus"),
    ("evaluate --answers asked.jsonl", 2, "--answers needs --corpus"),
    ("evaluate --answers asked.jsonl --corpus toy/corpus.jsonl -m nDCG@10", 2, "measure nDCG@10 cannot be computed from answers"),
    ("evaluate --answers toy/corpus.jsonl --corpus toy/corpus.jsonl", 3, "corpus.jsonl: question 'owl' has no answers"),
    ("evaluate --answers asked.jsonl --corpus asked.jsonl", 3, "asked.jsonl: has no document 'ant', which a run names"),
    ("evaluate --answers asked.json --corpus toy/corpus.jsonl", 3, "one.trec: run of another collection"),
    ("evaluate --qrels qrels --group-by set", 2, "--group-by needs --queries or --answers"),
    ("evaluate --qrels other --queries asked.jsonl --group-by set", 3, "asked.jsonl: query 'q4' is judged but not"),
    ("mine-negatives --qrels qrels --exclude-answers asked.json --corpus toy/corpus.jsonl", 3,
     "asked.json: has no question 'q1', for which negatives are mined"),
])  # fmt: skip
def test_what_cannot_be_done_ends_with_one_line(refuse, command, code, words):
    refuse(code, words, f"{command} --run one.trec --output out")
    assert not Path("out").exists()


def test_documents_with_an_answer_are_no_negatives(run):
    command = "mine-negatives --run one.trec --run two.trec --qrels judged --output"
    assert "answer" not in run(f"{command} plain.jsonl").stderr
    result = run(f"{command} out.jsonl --exclude-answers asked.jsonl --corpus toy/corpus.jsonl")
    assert "; documents that are no negatives: 2 contain an answer\n" in result.stderr
    negatives = {one["query_id"]: one["negative_ids"] for one in map(json.loads, Path("out.jsonl").read_text().splitlines())}
    assert negatives == {"q1": ["bat"], "q2": ["fox"], "q3": ["owl"]}
    assert manifests.read_counts(Path("out.jsonl"))["with_answers"] == 2
