"""The sweep over settings and seeds: killed and called again it makes nothing twice, and its table is that of an undisturbed one."""

import functools
import itertools
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from moeir import cli, settings
from moeir.artifacts import manifests
from moeir.records import examples, qrels
from moeir.stages import base
from tests.examples.shell import EXAMPLES, load_program, run_program

PROGRAM = [sys.executable, EXAMPLES / "sweep.py"]


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory, toy: Path, shallow_model: Path) -> Path:
    """Two learning rates and two seeds, on the toy texts."""
    folder = tmp_path_factory.mktemp("sweep")
    judged = qrels.read_qrels(toy / "train.qrels")
    examples.write_examples((examples.Example(query, tuple(grades), ()) for query, grades in judged.items()), folder / "train.jsonl")
    shared = {"model": shallow_model, "arch": "dense:pooling=mean", "objective": "contrastive", "train": folder / "train.jsonl"}
    shared |= {"corpus": toy / "corpus.jsonl", "queries": toy / "train-queries.jsonl", "steps": 3, "batch_size": 2, "negatives": 0}
    shared |= {"query_length": 16, "document_length": 32}
    dev = {"corpus": toy / "corpus.jsonl", "queries": toy / "test-queries.tsv", "qrels": toy / "test-qrels.tsv"}
    sweep = {
        "finetune": {name: str(value) if isinstance(value, Path) else value for name, value in shared.items()},
        "grid": {"learning_rate": ["1e-3", "1e-9"]},
        "seeds": [1, 2],
        "dev": {name: str(path) for name, path in dev.items()} | {"measure": "nDCG@10", "depth": 10},
    }
    (folder / "grid.yaml").write_text(yaml.safe_dump(sweep), encoding="utf-8")
    return folder / "grid.yaml"


run_sweep = functools.partial(run_program, "sweep.py")


@pytest.fixture(scope="module")
def undisturbed(grid: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder and the table of a sweep in one go."""
    work = tmp_path_factory.mktemp("undisturbed")
    completed = run_sweep(grid, work)
    assert completed.code == 0, completed.stderr
    return work, completed.stdout


def made_parts(work: Path) -> dict[str, float]:
    """The times at which the parts of the trainings got their manifests."""
    return {str(path.relative_to(work)): path.stat().st_mtime_ns for path in work.rglob("*manifest.json")}


def test_a_killed_sweep_that_jobs_go_on_with_ends_in_the_table_of_an_undisturbed_one(
    grid: Path, undisturbed: tuple[Path, str], tmp_path: Path
) -> None:
    work, second = tmp_path / "work", tmp_path / "work/learning_rate=1e-3/seed=2"
    with subprocess.Popen(list(map(str, [*PROGRAM, grid, work])), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as program:
        deadline = time.monotonic() + 300
        while not (second / ".checkpoint.partial").exists():  # the first training is finished, the second has begun
            assert time.monotonic() < deadline
            time.sleep(0.01)
        program.send_signal(signal.SIGKILL)
    assert not (second / "checkpoint").exists()
    before = made_parts(work)
    assert len(before) == 4, "the first training's checkpoint, encodings, index and run"
    assert run_sweep(grid, work, "--job", "0/3").stdout == ""
    assert sorted(path.parent.name for path in work.rglob("run.trec")) == ["seed=1", "seed=2"], "the first and the fourth of four"
    missing = run_sweep(grid, work, "--table")
    assert missing.code == 1 and missing.stdout == "" and "seed=2/run.trec: is not made yet" in missing.stderr
    for job in ("1/3", "2/3"):
        assert run_sweep(grid, work, "--job", job).code == 0
    table = run_sweep(grid, work, "--table").stdout
    assert table.replace(str(work), "") == undisturbed[1].replace(str(undisturbed[0]), "")
    assert before.items() <= made_parts(work).items(), "what was made is not made again"
    for path in undisturbed[0].rglob("run.trec"):
        other = work / path.relative_to(undisturbed[0])
        assert path.read_bytes() == other.read_bytes()
        weights = (folder / "checkpoint/model.safetensors" for folder in (path.parent, other.parent))
        assert len(set(map(manifests.compute_sha256, weights))) == 1


def test_the_table_has_the_best_setting_first_and_says_what_it_was_chosen_by(undisturbed: tuple[Path, str], toy: Path) -> None:
    header, _, first, second, _, best, *notes = undisturbed[1].splitlines()
    assert header.split()[:3] == ["setting", "seeds", "nDCG@10"] and best == f"best: {first.split()[0]}"
    assert {first.split()[0], second.split()[0]} == {"learning_rate=1e-3", "learning_rate=1e-9"}
    assert float(first.split()[2]) >= float(second.split()[2]) and [row.split()[1] for row in (first, second)] == ["2", "2"]
    assert notes[-1].startswith(f"chosen on {toy / 'test-queries.tsv'}, so its value there is too high; no test query was read")


def test_another_value_of_what_trainings_share_is_refused_and_names_the_training(
    grid: Path, undisturbed: tuple[Path, str], tmp_path: Path
) -> None:
    changed = tmp_path / "changed.yaml"
    changed.write_text(grid.read_text().replace("steps: 3", "steps: 4"), encoding="utf-8")
    completed = run_sweep(changed, undisturbed[0])
    report = completed.stderr.splitlines()[-4:]  # each training is tried
    assert completed.code == 1 and completed.stdout == "", "no table of runs that other settings made"
    for line, (folder, _) in zip(report, itertools.product(("1e-3", "1e-9"), (1, 2)), strict=True):
        assert line.startswith(f"{undisturbed[0]}/learning_rate={folder}/seed=") and "made with other settings or sources (steps)" in line
        assert line.endswith("--force replaces it")
    work = tmp_path / "work"
    shutil.copytree(undisturbed[0] / "learning_rate=1e-3/seed=1", work / "learning_rate=1e-3/seed=1")
    assert run_sweep(changed, work, "--job", "0/4", "--force").code == 0
    checkpoint = work / "learning_rate=1e-3/seed=1/checkpoint"
    assert manifests.read_manifest(checkpoint)["settings"]["steps"] == 4


def test_the_grid_of_the_examples_has_settings_of_finetune() -> None:
    sweep = yaml.safe_load((EXAMPLES / "sweep.yaml").read_text(encoding="utf-8"))
    names, stage = list(sweep["grid"]), cli.stage_class("finetune")
    for values in itertools.product(*sweep["grid"].values(), sweep["seeds"]):
        given = sweep["finetune"] | dict(zip([*names, "seed"], values, strict=True)) | {"output": "checkpoint"}
        base.check_settings(settings.build_stage(stage, given))


def change_grid(grid: Path, output: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """A copy of the grid, changed."""
    sweep = yaml.safe_load(grid.read_text(encoding="utf-8"))
    change(sweep)
    output.write_text(yaml.safe_dump(sweep), encoding="utf-8")
    return output


def test_a_setting_that_is_refused_or_fails_stops_no_other_and_is_named_at_the_end(
    grid: Path, undisturbed: tuple[Path, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    work = tmp_path / "work"
    shutil.copytree(undisturbed[0], work)
    values = ["no-number", "1e-6", "1e-3", "1e-9"]
    changed = change_grid(grid, tmp_path / "grid.yaml", lambda sweep: sweep["grid"].update(learning_rate=values))
    (work / "learning_rate=1e-6").mkdir()
    (work / "learning_rate=1e-6" / "seed=1").write_text("in the way")  # fails only while it trains
    completed = run_sweep(changed, work)
    assert completed.code == 1 and "Traceback" not in completed.stderr
    assert [line.split()[0] for line in completed.stdout.splitlines()[2:4]] == [
        line.split()[0] for line in undisturbed[1].splitlines()[2:4]
    ], "the table of those that are complete"
    assert (work / "learning_rate=1e-6" / "seed=2" / "run.trec").exists(), "behind two that fail"
    report = [line.partition(": ")[0].removeprefix(f"{work}/") for line in completed.stderr.splitlines()[-3:]]
    assert report == ["learning_rate=no-number/seed=1", "learning_rate=no-number/seed=2", "learning_rate=1e-6/seed=1"]
    first = caplog.messages[0]
    assert "learning_rate=no-number/seed=1: " in first and "expected a number" in first, "said before anything is trained"


MALFORMED: list[tuple[Callable[[dict[str, Any]], object] | None, str]] = [  # a change of the grid, and words of the one line
    (lambda sweep: sweep.pop("grid"), "expected the mappings finetune, grid and dev, and the list seeds"),
    (lambda sweep: sweep.update(sedes=[1]), "found dev, finetune, grid, sedes, seeds"),
    (lambda sweep: sweep["grid"].update(learning_rate=["1e-3", "1e-3"]), "learning_rate: expected a list of different"),
    (lambda sweep: sweep["dev"].update(depth="many"), "dev: depth: expected a number from 1 on, found many"),
    (lambda sweep: sweep["grid"].update({"batch-size": [1]}), "batch_size: is in finetune as well as in grid"),
    (lambda sweep: sweep["grid"].update(seed=[1]), "seed: is set by the sweep itself"),
    (lambda sweep: sweep["grid"].update({"learning-rate": ["1"]}), "named twice, with - and with _"),
    (None, "not YAML"),
]


def test_a_malformed_grid_is_one_line_before_anything_is_trained(grid: Path, tmp_path: Path) -> None:
    for change, words in MALFORMED:
        file = tmp_path / "grid.yaml"
        if change is None:
            file.write_text("grid: [")
        else:
            change_grid(grid, file, change)
        refused = run_sweep(file, tmp_path / "work")
        assert refused.code == 1 and refused.stderr.startswith("error: ") and words in refused.stderr and refused.stderr.count("\n") == 1
        assert not (tmp_path / "work").exists()


def test_every_setting_has_its_own_folder_however_alike_its_values_end(tmp_path: Path) -> None:
    grids: list[dict[str, list[str]]] = [
        {"train": ["a/t.jsonl", "b/t.jsonl"]},
        {"train": ["a/t.jsonl", "t.jsonl", "./t.jsonl", "a%2Ft.jsonl"]},
        {"objective": ["a:x=1,y=1", "a:x=1"], "queries": ["q", "q,y=1"]},
        {"objective": ["x,queries=y", "x"], "queries": ["z", "y,queries=z"]},
    ]
    for values in grids:
        expected = list(itertools.product(*values.values(), ["1", "2"]))
        trainings = load_program("sweep").list_trainings({"grid": values, "seeds": ["1", "2"]}, tmp_path)
        assert len(trainings) == len(expected)
        assert {(*(value for _, value in setting), seed) for setting, seed in trainings.values()} == set(expected)
