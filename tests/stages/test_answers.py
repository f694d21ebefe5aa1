"""Evaluation, tuning and mining with answers, where a document that contains an answer is relevant."""

import json
from decimal import Decimal

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
    (tmp_path / "asked.csv").write_text("".join(f"who is it\t{values}\n" for values in ANSWERS.values()))
    (tmp_path / "regex.tsv").write_text('who is it\t["hollow (oak|tree)"]\nwho is it\t["(scent"]\nwho is it\t["o[wx]l"]\n')
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
    assert result == "one: 3 of 3 questions, 0 without hits; 0 queries of the run have no answers\n"
    rows, _ = run_evaluate(moeir, "--answers", "asked.jsonl", "--run", "one.trec", "--run", "two.trec")
    assert rows == [
        *(["one", "Success@20", "all", "0.666667"], ["one", "Success@100", "all", "0.666667"]),
        *(["two", "Success@20", "all", "0.333333"], ["two", "Success@100", "all", "0.333333"]),
    ]


@pytest.mark.parametrize("name", ["asked.json", "asked.csv"])
def test_the_forms_of_dpr_are_questions_by_their_place(room, moeir, name):
    rows, _ = run_evaluate(moeir, "--answers", name, "--run", "numbered.trec")
    assert rows == [["Success@20", "all", "0.666667"], ["Success@100", "all", "0.666667"]]


def test_success_by_regular_expressions_says_which_are_none(room, moeir):
    rows, stderr = run_evaluate(moeir, "--answers", "regex.tsv", "--match", "regex", "--run", "numbered.trec", "-m", "Success@5", "-q")
    assert [value for _, _, value in rows] == ["1.000000", "0.000000", "1.000000", "0.666667"]
    assert stderr.startswith("regex.tsv: 1 answers are not valid regular expressions and match nothing; the first: '(scent' of question 1")


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
    assert (
        moeir(*command, "relation").stderr
        == "error: asked.jsonl:1: field 'relation' of 'q1' is not a printable string or a whole number: null\n"
    )


EVALUATE = ("evaluate", "--run", "one.trec")
ANSWER_FLAGS = ("--answers", "asked.jsonl", "--corpus", "corpus.jsonl")
TUNE = ("fuse", "--run", "two.trec", "--run", "one.trec", "--method", "hybrid", "--tune", "RR")
MINE = ("mine-negatives", "--run", "one.trec", "--qrels", "qrels", "--exclude-answers")
REFUSALS = [
    ((*EVALUATE,), 2, "evaluate needs --qrels, or --answers and --corpus"),
    ((*EVALUATE, *ANSWER_FLAGS, "--qrels", "qrels"), 2, "--qrels and --answers exclude one another"),
    ((*EVALUATE, "--answers", "asked.jsonl"), 2, "--answers needs --corpus: answers are looked for in the texts of a corpus"),
    ((*EVALUATE, "--qrels", "qrels", "--corpus", "corpus.jsonl"), 2, "--corpus needs --answers"),
    ((*EVALUATE, *ANSWER_FLAGS, "--match", "fuzzy"), 2, "--match fuzzy: expected string or regex"),
    ((*EVALUATE, *ANSWER_FLAGS, "-m", "nDCG@10"), 2, "measure nDCG@10 cannot be computed from answers"),
    ((*EVALUATE, "--answers", "corpus.jsonl", "--corpus", "corpus.jsonl"), 3, "corpus.jsonl: question 'owl' has no answers"),
    ((*EVALUATE, "--answers", "asked.jsonl", "--corpus", "asked.jsonl"), 3, "asked.jsonl: has no document 'ant', which a run names"),
    ((*EVALUATE, "--answers", "asked.csv", "--corpus", "corpus.jsonl"), 3, "one.trec: run of another collection"),
    ((*EVALUATE, "--qrels", "qrels", "--group-by", "set"), 2, "--group-by needs --queries: the records that have the field"),
    ((*EVALUATE, "--qrels", "qrels", "--queries", "asked.jsonl"), 2, "--queries needs --group-by"),
    ((*EVALUATE, "--qrels", "other", "--queries", "asked.jsonl", "--group-by", "set"), 3, "asked.jsonl: query 'q4' is judged but not"),
    ((*TUNE,), 2, "fuse --tune needs --qrels, or --answers and --corpus"),
    ((*TUNE[:-2], "--qrels", "qrels"), 2, "fuse: judgements and answers are for tuning; add --tune MEASURE"),
    ((*TUNE, "--qrels", "qrels", "--method", "rrf"), 2, "--tune: rrf has nothing to tune; hybrid and interpolation have alpha"),
    ((*TUNE, "--qrels", "qrels", "--method", "hybrid:alpha=1"), 2, "--tune: --method hybrid:alpha=1 sets alpha already"),
    ((*TUNE, "--qrels", "qrels", "--grid", "2:1:0.1"), 2, "--grid 2:1:0.1: expected FIRST:LAST:STEP"),
    ((*TUNE, "--qrels", "qrels", "--grid", "0:1:0.0001"), 2, "at most 1000 values"),
    ((*TUNE, "--qrels", "qrels", "--grid", "1:nan:x"), 2, "--grid 1:nan:x: expected FIRST:LAST:STEP"),
    ((*TUNE, *ANSWER_FLAGS, "--tune", "AP"), 2, "measure AP cannot be computed from answers"),
    ((*TUNE, "--qrels", "qrels", "--run", "numbered.trec"), 2, "hybrid: expected two runs, found 3"),
    ((*MINE, "asked.jsonl"), 2, "--exclude-answers needs --corpus"),
    ((*MINE, "asked.csv", "--corpus", "corpus.jsonl"), 3, "asked.csv: has no question 'q1', for which negatives are mined"),
]  # fmt: skip


@pytest.mark.parametrize(("command", "code", "words"), REFUSALS, ids=[words for _, _, words in REFUSALS])
def test_what_cannot_be_done_ends_with_one_line(room, moeir, command, code, words):
    (room / "other").write_text("q1 0 owl 1\nq4 0 owl 1\n")
    result = moeir(*command, "--output", "out")
    assert (result.code, result.stderr.count("error: ")) == (code, 1), result.stderr
    assert words in result.stderr.splitlines()[-1]
    assert not (room / "out").exists()


@pytest.fixture
def tuning(room):
    """Two runs of two query sets; the best alpha is neither the first nor the last, and differs between the sets."""
    first = {"q1": {"bat": 3.0, "owl": 2.0, "bee": 1.0}, "q2": {"ant": 2.0, "fox": 1.0}, "q3": {"ice": 5.0, "bee": 2.0, "eel": 1.0}}
    second = {"q1": {"owl": 2.0, "bat": 1.1}, "q2": {"fox": 3.0, "ant": 2.35}, "q3": {"eel": 3.0, "ice": 1.0, "oak": 0.5}}
    runs.write_run(Run.from_hits(first), "first.trec")
    runs.write_run(Run.from_hits(second), "second.trec")
    return room


def run_tune(moeir, *arguments):
    files = ("--run", "first.trec", "--run", "second.trec", "--output", "out.trec", "--force")
    result = moeir("fuse", *files, "--method", "hybrid", *arguments)
    assert result.code == 0, result.stderr
    return json.loads(open("out.trec.manifest.json").read())["counts"], result.messages


def tune_by_brute_force(moeir, room, measure, judgements, steps):
    """The mean of every alpha, computed with the commands that users would type."""
    means = {}
    for alpha in steps:
        run_file = f"alpha-{alpha}.trec"
        result = moeir("fuse", "--run", "first.trec", "--run", "second.trec", "--method", f"hybrid:alpha={alpha}", "--output", run_file)
        assert result.code == 0, result.stderr
        result = moeir("evaluate", "--run", run_file, *judgements, "--measure", measure, "--form", "jsonl")
        means[alpha] = json.loads(result.stdout)["value"]
    return means


@pytest.mark.parametrize(("measure", "judgements"), [("RR@10", ("--qrels", "qrels")), ("Success@1", ANSWER_FLAGS)])
def test_tuning_finds_what_brute_force_finds(tuning, moeir, measure, judgements):
    steps = [str(Decimal("0.5") + Decimal("0.1") * number) for number in range(16)]
    means = tune_by_brute_force(moeir, tuning, measure, judgements, steps)
    best = next(alpha for alpha in steps if means[alpha] == max(means.values()))
    assert len(set(means.values())) > 1 and best not in (steps[0], steps[-1])
    counts, result = run_tune(moeir, "--tune", measure, *judgements)
    assert counts["grid"] == means and (counts["alpha"], counts["measure"]) == (best, measure)
    assert (tuning / "out.trec").read_text() == (tuning / f"alpha-{best}.trec").read_text()
    assert result[0].split() == ["alpha", measure] and len(result) == 2 + 16 + 1
    assert result[-1] == f"tuned: --method hybrid:alpha={best}"


def test_options_of_the_formula_are_kept(tuning, moeir):
    counts, result = run_tune(moeir, "--method", "hybrid:depth=1,normalise=centred", "--tune", "RR", "--qrels", "qrels", "--grid", "1:2:1")
    assert result[-1] == f"tuned: --method hybrid:depth=1,normalise=centred,alpha={counts['alpha']}"
    assert list(counts["grid"]) == ["1", "2"]


def test_one_alpha_for_several_sets_is_best_for_the_mean_of_their_means(tuning, moeir):
    sets = ("--queries", "asked.jsonl", "--group-by", "set")
    counts, result = run_tune(moeir, "--tune", "RR@10", "--qrels", "qrels", *sets, "--grid", "0.5:2.5:0.1")
    assert counts["measure"] == "RR@10, macro by set" and result[0].split()[0] == "alpha"
    means = {}
    for group in "xy":
        (tuning / group).write_text("".join(f"{line}\n" for line in (tuning / "qrels").read_text().splitlines() if SETS[line[:2]] == group))
        means[group] = tune_by_brute_force(moeir, tuning, "RR@10", ("--qrels", group), counts["grid"])
    assert counts["grid"] == pytest.approx({alpha: (means["x"][alpha] + means["y"][alpha]) / 2 for alpha in counts["grid"]})
    assert counts["alpha"] == next(alpha for alpha in counts["grid"] if counts["grid"][alpha] == max(counts["grid"].values()))


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
