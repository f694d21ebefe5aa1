"""Programs of the declared experiments: contrasts against scipy, committed pages against committed records, a prediction by hand."""

import doctest
import importlib
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy
import yaml

from moeir.errors import DataError
from moeir.records import qrels
from tests.examples.shell import run_program

FOLDER = Path(__file__).parent / "benchmarks" / "evidence"
DECLARED = sorted(path.stem for path in (FOLDER / "declarations").glob("*.yaml"))
sys.path.insert(0, str(FOLDER))  # the programs import each other, as where they run


record, tables = map(importlib.import_module, ("record", "tables"))


def write_row(records: Path, row: str, scores: dict[str, dict[str, list[float]]]) -> None:
    machine = {"processor": "one", "extensions": [], "threads": 1}
    means = {
        name: {run: {"nDCG@10": float(np.mean(values)), "RR@10": 0.5, "R@100": 1.0} for run, values in runs.items()}
        for name, runs in scores.items()
    }
    sets = {name: {"questions": 20, "qrels": "q", "corpus": "c", "means": of_set, "rbo": {}} for name, of_set in means.items()}
    training = {"settings": {"steps": 2, "batch-size": 4}, "sources": {"model": ["m"], "train": ["t"]}, "weights": "w", "seconds": 60}
    line = {"row": row, "size": "cores", "variables": {"STEPS": "2"}, "date": "2026-01-01", "commit": "abc", "machine": machine}
    line |= {"sets": sets, "trainings": {} if row == "bm25" else {"": training}}
    scores = {name: runs | {"documents": [number // 2 for number in range(20)]} for name, runs in scores.items()}
    record.append_line(records, line | {"curves": {}, "scores": scores})


@pytest.fixture
def experiment(tmp_path: Path) -> Any:
    declared = {
        "title": "t", "declared": "2026-01-01", "question": "q", "sets": ["one"], "seeds": [1, 2], "rows": {"new": "n", "old": "o"},
        "references": ["bm25"], "curves": [], "null_result": "none", "smallest_effect": 0.01, "common_start": ["new", "old"],
        "primary": [["new/fused", "old/fused"]],
        "secondary": [["new/best", "bm25/bm25"], {"of": ["new/fused", "old/fused"], "sets": ["one", "two"]}, ["never/fused", "old/fused"]],
    }  # fmt: skip
    (tmp_path / "declarations").mkdir()
    (tmp_path / "declarations" / "x.yaml").write_text(yaml.safe_dump(declared), encoding="utf-8")
    rng = np.random.default_rng(0)
    for row in ("new-1", "new-2", "old-1", "old-2"):
        scores = {name: {run: rng.random(20).round(4).tolist() for run in ("lexical", "global", "fused")} for name in ("one", "two")}
        write_row(tmp_path / "results" / "x.jsonl.gz", row, scores)
    write_row(tmp_path / "results" / "x.jsonl.gz", "bm25", {"one": {"bm25": rng.random(20).round(4).tolist()}})
    return tables.Experiment("x", tmp_path / "declarations", tmp_path / "results")


def test_without_common_documents_it_is_the_paired_t_test() -> None:
    new, old = np.random.default_rng(1).random((2, 30))
    expected = scipy.stats.ttest_rel(new, old)
    interval = expected.confidence_interval()
    mean, low, high, effect, p = tables.estimate_difference([new - old], [np.arange(30)])
    assert (mean, low, high, p) == pytest.approx(((new - old).mean(), interval.low, interval.high, expected.pvalue))
    assert effect == pytest.approx((new - old).mean() / (new - old).std(ddof=1))


def test_a_contrast_is_of_means_over_the_seeds_that_both_rows_have(experiment: Any) -> None:
    (primary,) = experiment.contrasts("primary")
    new, old = (np.mean([experiment.scores(f"{row}-{seed}", "fused", "one") for seed in (1, 2)], axis=0) for row in ("new", "old"))
    assert primary.mean == pytest.approx((new - old).mean()) and primary.whole
    assert list(primary.by_seed) == [1, 2] and np.mean(list(primary.by_seed.values())) == pytest.approx(primary.mean)
    experiment.declared["seeds"] = [1, 2, 3]
    del experiment.records["old-1"]
    (partly,) = experiment.contrasts("primary")
    assert list(partly.by_seed) == [2] and not partly.whole and not partly.is_claimed
    assert partly.by_seed[2] == pytest.approx(
        (experiment.scores("new-2", "fused", "one") - experiment.scores("old-2", "fused", "one")).mean()
    )
    del experiment.records["new-2"]
    assert experiment.contrasts("primary") == ["new/fused − old/fused"], "no seed in common"


def test_several_sets_count_alike_and_a_row_without_seeds_stands_beside_each(experiment: Any) -> None:
    best, macro, missing = experiment.contrasts("secondary")
    per_set = [
        np.mean(
            [experiment.scores(f"new-{seed}", "fused", name) - experiment.scores(f"old-{seed}", "fused", name) for seed in (1, 2)], axis=0
        )
        for name in ("one", "two")
    ]
    assert macro.mean == pytest.approx(np.mean([values.mean() for values in per_set]))
    pairs = [values.reshape(10, 2).mean(1) for values in per_set]  # two questions for each document, equally many for all
    error = np.sqrt(sum(values.var(ddof=1) / 10 for values in pairs)) / 2
    assert (macro.high - macro.low) / 2 / error == pytest.approx(2.1, abs=0.05), "about 18 degrees of freedom"
    experts = [
        np.maximum(experiment.scores(f"new-{seed}", "lexical", "one"), experiment.scores(f"new-{seed}", "global", "one")) for seed in (1, 2)
    ]
    assert best.mean == pytest.approx(np.mean(experts) - experiment.scores("bm25", "bm25", "one").mean())
    assert missing == "never/fused − old/fused"
    table = tables.contrasts_table([best, macro, missing], "holm")
    corrected = [line.split("|")[6].strip() for line in table.splitlines()[2:]]
    assert corrected[2] == "" and float(corrected[0].lstrip("<")) >= min(1.0, 2 * best.p) - 0.001, "corrected over three, not over two"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda line: line.update(size="h200"), "size"),
        (lambda line: line["variables"].update(STEPS="3"), "variables"),
        (lambda line: line["sets"]["one"].update(corpus="other"), "corpus of one"),
        (lambda line: line["trainings"][""]["sources"].update(model=["other"]), "what they start from"),
    ],
)
def test_records_that_must_not_be_mixed_are_an_error(experiment: Any, change: Any, message: str) -> None:
    experiment.check()
    change(experiment.records["old-2"])
    with pytest.raises(DataError, match=message):
        experiment.check()


def test_a_difference_is_claimed_if_every_seed_has_its_sign() -> None:
    values = {"label": "a", "mean": 0.02, "low": 0.01, "high": 0.03, "effect": 0.1, "p": 0.001, "whole": True}
    assert "at least 0.01" in tables.judge(tables.Contrast(**values, by_seed={1: 0.03, 2: 0.01}), 0.01)
    assert "No difference is claimed" in tables.judge(tables.Contrast(**values, by_seed={1: 0.05, 2: -0.01}), 0.01)
    null = values | {"mean": 0.001, "low": -0.004, "high": 0.006, "p": 0.6}
    assert "excludes differences of 0.01" in tables.judge(tables.Contrast(**null, by_seed={1: 0.001}), 0.01)
    assert "nothing is concluded" in tables.judge(tables.Contrast(**(values | {"whole": False}), by_seed={1: 0.02}), 0.01)


def test_the_committed_pages_are_those_of_the_committed_records() -> None:
    lines: list[str] = []
    assert tables.main([], lines.append, check=True) == 0, "".join(lines)


@pytest.mark.parametrize("name", DECLARED)
def test_a_declaration_is_whole(name: str) -> None:
    declared = tables.Experiment(name).declared
    known = {*declared["rows"], *declared.get("references", [])}
    needed = "title declared question data steps test smallest_effect null_result primary sets curves"
    assert set(needed.split()) <= declared.keys()
    assert set(declared.get("common_start", [])) <= set(declared["rows"])
    for entry in [*declared["primary"], *declared["secondary"]]:
        for term in entry["of"] if isinstance(entry, dict) else entry:
            assert term.rpartition("/")[0] in known, f"{name}: {term} is of no declared row"
    assert (FOLDER / f"{name}.sh").exists(), "a script runs it"


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.py")))
def test_the_examples_in_the_programs_are_right(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_the_entropy_of_shares_is_predicted_from_lists(tmp_path: Path) -> None:
    judged, documents = {f"q{number}": {"d0": 1} for number in range(4)}, [f"d{number}" for number in range(9)]
    qrels.write_qrels(judged, tmp_path / "qrels")
    first = {query: {document: -float(rank) for rank, document in enumerate(documents)} for query in judged}
    behind = {document: -float(rank) for rank, document in enumerate([*documents[1:], "d0"])}
    second = {**first, "q0": behind, "q1": {document: score for document, score in behind.items() if document != "d0"}}
    for name, run in (("one", first), ("two", second)):
        lines = (f"{query} Q0 {document} {-score:.0f} {score} x\n" for query, scores in run.items() for document, score in scores.items())
        (tmp_path / name).write_text("".join(lines))
    paths = [tmp_path / name for name in ("qrels", "one", "two")]
    predicted = run_program("predict_shares.py", *paths, "--last", "8", "--temperature", "0.5", folder=FOLDER).stdout
    share = 1 / (1 + math.exp((1 / 8 - 1) / 0.5))  # of ranks 1 and 8; q1 does not count, the others are equal
    entropy = (-share * math.log(share) - (1 - share) * math.log(1 - share) + 2 * math.log(2)) / 3
    assert predicted == f"3 of 4 queries count; ranks differ for 33%; ln 2 = 0.6931\ntemperature 0.5: mean entropy {entropy:.4f}\n"
