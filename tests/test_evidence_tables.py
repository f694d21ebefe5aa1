"""Tables of the declared experiments: contrasts against scipy, and the committed pages against the committed records."""

import gzip
import importlib.util
import json
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import scipy
import yaml

FOLDER = Path(__file__).parent / "benchmarks" / "evidence"
DECLARED = sorted(path.stem for path in (FOLDER / "declarations").glob("*.yaml"))


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    specification = importlib.util.spec_from_file_location("evidence_tables", FOLDER / "tables.py")
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def write_row(folder: Path, row: str, scores: dict[str, dict[str, list[float]]]) -> None:
    machine = {"processor": "one", "extensions": [], "threads": 1}
    means = {
        name: {run: {"nDCG@10": float(np.mean(values)), "RR@10": 0.5, "R@100": 1.0} for run, values in runs.items()}
        for name, runs in scores.items()
    }
    sets = {name: {"questions": 4, "digest": "d", "means": of_set, "rbo": {}} for name, of_set in means.items()}
    record = {"row": row, "size": "cores", "date": "2026-01-01", "commit": "abc", "machine": machine, "sets": sets}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{row}.json").write_text(json.dumps(record), encoding="utf-8")
    (folder / f"{row}.scores.gz").write_bytes(gzip.compress(json.dumps(scores).encode()))


@pytest.fixture
def experiment(tables: ModuleType, tmp_path: Path) -> Any:
    declared = {
        "title": "t", "declared": "2026-01-01", "question": "q", "sets": ["one"], "seeds": [1, 2], "rows": {"new": "n", "old": "o"},
        "references": ["bm25"], "curves": [], "null_result": "none",
        "primary": [["new/fused", "old/fused"]],
        "secondary": [["new/best", "bm25/bm25"], {"of": ["new/fused", "old/fused"], "sets": ["one", "two"]}, ["never/fused", "old/fused"]],
    }  # fmt: skip
    (tmp_path / "declarations").mkdir()
    (tmp_path / "declarations" / "x.yaml").write_text(yaml.safe_dump(declared), encoding="utf-8")
    rng = np.random.default_rng(0)
    for row in ("new-1", "new-2", "old-1", "old-2"):
        scores = {name: {run: rng.random(20).round(4).tolist() for run in ("lexical", "global", "fused")} for name in ("one", "two")}
        write_row(tmp_path / "results" / "x", row, scores)
    write_row(tmp_path / "results" / "x", "bm25", {"one": {"bm25": rng.random(20).round(4).tolist()}})
    return tables.Experiment("x", tmp_path / "declarations", tmp_path / "results")


def test_a_contrast_is_the_paired_t_test_of_means_over_seeds(experiment: Any) -> None:
    (primary,) = experiment.contrasts("primary")
    new, old = (np.mean([experiment.scores(f"{row}-{seed}", "fused", "one") for seed in (1, 2)], axis=0) for row in ("new", "old"))
    expected = scipy.stats.ttest_rel(new, old)
    interval = expected.confidence_interval()
    assert (primary.mean, primary.low, primary.high, primary.p) == pytest.approx(
        ((new - old).mean(), interval.low, interval.high, expected.pvalue)
    )
    assert np.mean(primary.by_seed) == pytest.approx(primary.mean)
    assert primary.effect == pytest.approx((new - old).mean() / (new - old).std(ddof=1))


def test_several_sets_count_alike_and_a_row_without_seeds_stands_beside_each(experiment: Any) -> None:
    best, macro, missing = experiment.contrasts("secondary")
    per_set = [
        np.mean(
            [experiment.scores(f"new-{seed}", "fused", name) - experiment.scores(f"old-{seed}", "fused", name) for seed in (1, 2)], axis=0
        )
        for name in ("one", "two")
    ]
    assert macro.mean == pytest.approx(np.mean([values.mean() for values in per_set]))
    error = np.sqrt(sum(values.var(ddof=1) / 20 for values in per_set)) / 2
    assert (macro.high - macro.low) / 2 / error == pytest.approx(2.02, abs=0.02), "about 38 degrees of freedom"
    experts = [
        np.maximum(experiment.scores(f"new-{seed}", "lexical", "one"), experiment.scores(f"new-{seed}", "global", "one")) for seed in (1, 2)
    ]
    assert best.mean == pytest.approx(np.mean(experts) - experiment.scores("bm25", "bm25", "one").mean())
    assert missing == "never/fused − old/fused"


def test_a_difference_of_differences(experiment: Any) -> None:
    both = experiment.contrast(["new/fused", "old/fused", "new/lexical", "old/lexical"], ["one"])
    fused, lexical = (experiment.contrast([f"new/{run}", f"old/{run}"], ["one"]) for run in ("fused", "lexical"))
    assert both.mean == pytest.approx(fused.mean - lexical.mean)


def test_a_page_keeps_its_words_and_a_changed_record_is_seen(tables: ModuleType, experiment: Any, tmp_path: Path) -> None:
    page = tmp_path / "x.md"
    tables.write_page(page, "t", tables.describe(experiment), check=False)
    page.write_text(page.read_text(encoding="utf-8") + "\nWhat it shows.\n", encoding="utf-8")
    assert tables.write_page(page, "t", tables.describe(experiment), check=True)
    shutil.copy(experiment.results / "x" / "old-1.scores.gz", experiment.results / "x" / "new-1.scores.gz")
    changed = tables.Experiment("x", tmp_path / "declarations", tmp_path / "results")
    assert not tables.write_page(page, "t", tables.describe(changed), check=True)
    tables.write_page(page, "t", tables.describe(changed), check=False)
    assert page.read_text(encoding="utf-8").endswith("What it shows.\n")


def test_the_settings_that_were_tried_are_shown(tables: ModuleType, experiment: Any, tmp_path: Path) -> None:
    assert "tried" not in tables.describe(experiment)
    folder = tmp_path / "results" / "x" / "choice"
    folder.mkdir()
    for similarity, rate, value in (("0.5", "1e-6", 0.25), ("0.5", "1e-5", 0.5), ("cosine", "1e-5", 0.375)):
        choice = {"group": "new-squad", "similarity": similarity, "rate": rate, "nDCG@10": value}
        (folder / f"new-squad-{similarity}-{rate}.json").write_text(json.dumps(choice), encoding="utf-8")
    page = tables.describe(tables.Experiment("x", tmp_path / "declarations", tmp_path / "results"))
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("| new-squad")]
    assert lines == [["new-squad", "0.5", "0.2500", "**0.5000**"], ["new-squad", "cosine", "", "0.3750"]]


def test_a_pretraining_without_negatives_is_among_what_ran(tables: ModuleType, experiment: Any, tmp_path: Path) -> None:
    path = tmp_path / "results" / "x" / "bm25.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    record |= {"training": {"settings": {"steps": 20, "batch-size": 16}, "seconds": 120}, "sets": {}}
    path.write_text(json.dumps(record), encoding="utf-8")
    changed = tables.Experiment("x", tmp_path / "declarations", tmp_path / "results")
    assert "| bm25 | 20 × 16 | 2 |" in " ".join(tables.runs_table(changed).split())


def test_the_committed_pages_are_those_of_the_committed_records(tables: ModuleType) -> None:
    lines: list[str] = []
    assert tables.main([], lines.append, check=True) == 0, "".join(lines)


@pytest.mark.parametrize("name", DECLARED)
def test_a_declaration_is_whole(tables: ModuleType, name: str) -> None:
    declared = tables.Experiment(name).declared
    known = {*declared["rows"], *declared.get("references", [])}
    assert {"title", "declared", "question", "data", "steps", "test", "null_result", "primary", "sets", "curves"} <= declared.keys()
    for entry in [*declared["primary"], *declared["secondary"]]:
        for term in entry["of"] if isinstance(entry, dict) else entry:
            assert term.rpartition("/")[0] in known, f"{name}: {term} is of no declared row"
    assert (FOLDER / f"{name}.sh").exists(), "a script runs it"
