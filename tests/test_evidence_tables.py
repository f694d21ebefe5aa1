"""Programs of the declared experiments: contrasts against scipy, committed pages against committed records."""

import doctest
import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy
import yaml

from moeir.errors import DataError

FOLDER = Path(__file__).parent / "benchmarks" / "evidence"
DECLARED = sorted(path.stem for path in (FOLDER / "declarations").glob("*.yaml"))
sys.path.insert(0, str(FOLDER))  # the programs import each other, as where they run


def load_program(name: str) -> Any:
    """A program of the experiments, as a module."""
    return importlib.import_module(name)


record, tables = load_program("record"), load_program("tables")


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


def mean_scores(experiment: Any, row: str, run: str, of_set: str) -> Any:
    """nDCG@10 of each question, the mean of both seeds."""
    return np.mean([experiment.scores(f"{row}-{seed}", run, of_set) for seed in (1, 2)], axis=0)


def test_without_common_documents_it_is_the_paired_t_test() -> None:
    new, old = np.random.default_rng(1).random((2, 30))
    expected = scipy.stats.ttest_rel(new, old)
    interval = expected.confidence_interval()
    mean, low, high, effect, p = tables.estimate_difference([new - old], [np.arange(30)])
    assert (mean, low, high, p) == pytest.approx(((new - old).mean(), interval.low, interval.high, expected.pvalue))
    assert effect == pytest.approx((new - old).mean() / (new - old).std(ddof=1))


def test_questions_of_one_document_count_as_one_where_they_are_alike() -> None:
    single = np.random.default_rng(1).random(30)
    twice, documents = np.repeat(single, 2), np.repeat(np.arange(30), 2)
    together = tables.estimate_difference([twice], [documents])
    assert together[1:3] == pytest.approx(tables.estimate_difference([single], [np.arange(30)])[1:3])
    assert tables.estimate_difference([twice], [np.arange(60)])[4] < together[4]


def test_a_contrast_is_of_means_over_the_seeds_that_both_rows_have(experiment: Any) -> None:
    (primary,) = experiment.contrasts("primary")
    difference = mean_scores(experiment, "new", "fused", "one") - mean_scores(experiment, "old", "fused", "one")
    assert primary.mean == pytest.approx(difference.mean()) and primary.whole
    assert list(primary.by_seed) == [1, 2] and np.mean(list(primary.by_seed.values())) == pytest.approx(primary.mean)
    experiment.declared["seeds"] = [1, 2, 3]
    del experiment.records["old-1"]
    (partly,) = experiment.contrasts("primary")
    assert list(partly.by_seed) == [2] and not partly.whole and not partly.is_claimed
    second = experiment.scores("new-2", "fused", "one") - experiment.scores("old-2", "fused", "one")
    assert partly.by_seed[2] == pytest.approx(second.mean())
    del experiment.records["new-2"]
    assert experiment.contrasts("primary") == ["new/fused − old/fused"], "no seed in common"


def test_several_sets_count_alike_and_a_row_without_seeds_stands_beside_each(experiment: Any) -> None:
    best, macro, missing = experiment.contrasts("secondary")
    per_set = [mean_scores(experiment, "new", "fused", name) - mean_scores(experiment, "old", "fused", name) for name in ("one", "two")]
    assert macro.mean == pytest.approx(np.mean([values.mean() for values in per_set]))
    pairs = [values.reshape(10, 2).mean(1) for values in per_set]  # two questions for each document, equally many for all
    error = np.sqrt(sum(values.var(ddof=1) / 10 for values in pairs)) / 2
    assert (macro.high - macro.low) / 2 / error == pytest.approx(2.1, abs=0.05), "about 18 degrees of freedom"
    experts = [np.maximum(*(experiment.scores(f"new-{seed}", name, "one") for name in ("lexical", "global"))) for seed in (1, 2)]
    assert best.mean == pytest.approx(np.mean(experts) - experiment.scores("bm25", "bm25", "one").mean())
    assert missing == "never/fused − old/fused"
    table = tables.contrasts_table([best, macro, missing], "holm")
    corrected = [line.split("|")[6].strip() for line in table.splitlines()[2:]]
    assert corrected[2] == "" and float(corrected[0].lstrip("<")) >= min(1.0, 2 * best.p) - 0.001, "corrected over three, not over two"


def test_records_that_must_not_be_mixed_are_an_error(experiment: Any) -> None:
    line = experiment.records["old-2"]
    parts = {"what they start from": (line["trainings"][""]["sources"], "model"), "corpus of one": (line["sets"]["one"], "corpus")}
    for message, (part, key) in ({"size": (line, "size"), "variables": (line, "variables")} | parts).items():
        experiment.check()
        value, part[key] = part[key], "other"
        with pytest.raises(DataError, match=message):
            experiment.check()
        part[key] = value


def test_a_difference_is_claimed_if_every_seed_has_its_sign() -> None:
    values = {"label": "a", "mean": 0.02, "low": 0.01, "high": 0.03, "effect": 0.1, "p": 0.001, "whole": True}
    assert "at least 0.01" in tables.judge(tables.Contrast(**values, by_seed={1: 0.03, 2: 0.01}), 0.01)
    assert "No difference is claimed" in tables.judge(tables.Contrast(**values, by_seed={1: 0.05, 2: -0.01}), 0.01)
    null = values | {"mean": 0.001, "low": -0.004, "high": 0.006, "p": 0.6}
    assert "excludes differences of 0.01" in tables.judge(tables.Contrast(**null, by_seed={1: 0.001}), 0.01)
    assert "nothing is concluded" in tables.judge(tables.Contrast(**(values | {"whole": False}), by_seed={1: 0.02}), 0.01)


def test_a_page_keeps_its_words_and_a_changed_record_is_seen(experiment: Any, tmp_path: Path) -> None:
    page = tmp_path / "x.md"
    tables.write_page(page, "t", tables.describe(experiment), check=False)
    page.write_text(page.read_text(encoding="utf-8") + "\nWhat it shows.\n", encoding="utf-8")
    assert tables.write_page(page, "t", tables.describe(experiment), check=True)
    experiment.records["new-1"]["scores"] = experiment.records["old-1"]["scores"]
    assert not tables.write_page(page, "t", tables.describe(experiment), check=True)
    tables.write_page(page, "t", tables.describe(experiment), check=False)
    assert page.read_text(encoding="utf-8").endswith("What it shows.\n")


def test_the_settings_that_were_tried_are_shown(experiment: Any, tmp_path: Path) -> None:
    assert "tried" not in tables.describe(experiment)
    for similarity, rate, value in (("0.5", "1e-6", 0.25), ("0.5", "1e-5", 0.5), ("cosine", "1e-5", 0.375)):
        choice = {"choice": f"new-squad-{similarity}-{rate}", "group": "new-squad", "similarity": similarity, "rate": rate}
        choice["nDCG@10"] = value
        record.append_line(experiment.file, choice)
    page = tables.describe(tables.Experiment("x", tmp_path / "declarations", tmp_path / "results"))
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("| new-squad")]
    assert lines == [["new-squad", "0.5", "0.2500", "**0.5000**"], ["new-squad", "cosine", "", "0.3750"]]


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
