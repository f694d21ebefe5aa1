"""tests/benchmarks/gpu.sh: every part runs at toy size, on the real device where there is one, else on the pretended one."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.benchmarks.gpu import __main__ as gpu
from tests.benchmarks.gpu import quickstart, results, texts
from tests.device import guard

PLAIN = "5b"  # the part of every run of the tests
FLAGS = ("--toy",) if guard.real_cards() else ("--toy", "--pretend")
SCRIPT = results.ROOT / "tests" / "benchmarks" / "gpu.sh"


def run_script(work: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """gpu.sh at toy size, its results in `work`."""
    environment = {"WORK": str(work), "PYTHON": sys.executable, "COMMIT": "tested", "OMP_NUM_THREADS": "1"}
    command = ["bash", str(SCRIPT), *arguments, *FLAGS]
    return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=600, check=False)


@pytest.fixture
def run_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """`run_part("0")`: the exit code of a part in this process, its results in `tmp_path`; `flags` are those of the script."""

    def run(part: str, flags: tuple[str, ...] = FLAGS) -> int:
        monkeypatch.setattr(sys, "argv", ["gpu", part, *flags])
        monkeypatch.setenv("WORK", str(tmp_path))
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", os.environ.get("CUDA_VISIBLE_DEVICES", "0"))  # a part sets it
        with pytest.raises(SystemExit) as ended:
            gpu.main()
        return int(ended.value.code or 0)

    return run


@pytest.mark.parametrize("part", [part if part == PLAIN else pytest.param(part, marks=pytest.mark.torture) for part in results.PARTS])
def test_a_part_finds_nothing_wrong_and_fills_its_tables(part: str, tmp_path: Path) -> None:
    completed = run_script(tmp_path, part)
    assert completed.returncode == 0, completed.stdout + completed.stderr[-3000:]
    piece = results.Piece.read(tmp_path / "results" / "gpu" / f"{part}.json")
    assert piece.finished and not piece.failures
    assert piece.facts["commit"] == "tested"
    assert piece.skipped or (piece.tables and all(table.rows for table in piece.tables))
    page = (tmp_path / "results" / "gpu.md").read_text(encoding="utf-8")
    assert f"## {part}. {results.PARTS[part].title}" in page and results.NOTHING not in page


def test_a_part_that_is_done_is_skipped(tmp_path: Path, run_part: Callable[..., int], capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "results" / "gpu" / "5b.json"
    piece = results.Piece("5b", {"date": "today", "commit": "abc"}, finished=True, notes=["it was quick"])
    results.write_whole(path, json.dumps(results.asdict(piece)))
    assert run_part("5b") == 0 and "part 5b is done (today, commit abc)" in capfd.readouterr().err


def test_a_part_that_is_not_there_is_refused(tmp_path: Path) -> None:
    completed = run_script(tmp_path, "9")
    assert (completed.returncode, "no such part: 9" in completed.stderr) == (2, True)


def test_the_page_is_what_the_pieces_make_and_says_when_there_are_none() -> None:
    assert results.PAGE.read_text(encoding="utf-8") == results.page(results.PAGE.parent)
    assert (results.NOTHING in results.PAGE.read_text(encoding="utf-8")) != (results.PAGE.parent / "gpu").is_dir()


def test_what_fails_is_told_and_the_part_is_not_done(tmp_path: Path) -> None:
    context = results.Context(results.Piece("3a"), tmp_path, tmp_path)
    with context.attempt("a step"):
        raise RuntimeError("no\nsuch kernel")
    context.piece.finished = True
    context.save()
    assert not results.Piece.read(tmp_path / "gpu" / "3a.json").done
    page = (tmp_path / "gpu.md").read_text(encoding="utf-8")
    assert "**Failed: a step: RuntimeError: no such kernel**" in page and "| **1 failed** |" in page


def test_pretend_says_why_where_it_is_impossible(
    run_part: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse() -> None:
        raise guard.Unavailable("this torch is built for CUDA and finds no GPU")

    monkeypatch.setattr(guard, "load", refuse)
    assert run_part("5b", ("--toy", "--pretend")) == 2
    assert "--pretend: this torch is built for CUDA and finds no GPU" in capfd.readouterr().err


def test_a_part_without_its_weights_is_skipped_by_their_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "find_minilm", lambda: None)
    context = results.Context(results.Piece("6"), tmp_path, tmp_path)
    quickstart.train_longer(context)
    assert "all-MiniLM-L6-v2 is missing" in context.piece.skipped and not context.piece.failures
    monkeypatch.undo()
    monkeypatch.setenv("MINILM", str(tmp_path))
    assert texts.find_minilm() == tmp_path


def test_the_minutes_of_a_part_can_be_set(tmp_path: Path, run_part: Callable[..., int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINUTES", "0")
    assert run_part("0") == 0
    piece = results.Piece.read(tmp_path / "results" / "gpu" / "0.json")
    assert piece.notes and all("0 minutes were over" in note for note in piece.notes)
