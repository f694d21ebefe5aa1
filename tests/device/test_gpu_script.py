"""tests/benchmarks/gpu.sh: every part runs at toy size, on the real device where there is one, else on the pretended one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks.gpu import __main__ as gpu
from tests.benchmarks.gpu import quickstart, results, texts
from tests.device import guard

PLAIN = "5b"  # the part of every run of the tests
SCRIPT = results.ROOT / "tests" / "benchmarks" / "gpu.sh"


def run_script(work: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """gpu.sh at toy size, its results in `work`."""
    flags = ["--toy"] if guard.real_cards() else ["--toy", "--pretend"]
    environment = {"WORK": str(work), "PYTHON": sys.executable, "COMMIT": "tested", "OMP_NUM_THREADS": "1"}
    command = ["bash", str(SCRIPT), *arguments, *flags]
    return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=600, check=False)


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


def test_a_part_that_is_done_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "results" / "gpu" / "5b.json"
    piece = results.Piece("5b", {"date": "today", "commit": "abc"}, finished=True, notes=["it was quick"])
    results.write_whole(path, json.dumps(results.asdict(piece)))
    assert "part 5b is done (today, commit abc)" in run_script(tmp_path, "5b").stderr


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


def test_pretend_says_why_where_it_is_impossible(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    def refuse() -> None:
        raise guard.Unavailable("this torch is built for CUDA and finds no GPU")

    monkeypatch.setattr(guard, "load", refuse)
    monkeypatch.setattr(sys, "argv", ["gpu", "5b", "--toy", "--pretend"])
    with pytest.raises(SystemExit) as ended:
        gpu.main()
    assert ended.value.code == 2 and "--pretend: this torch is built for CUDA and finds no GPU" in capfd.readouterr().err


def test_a_part_without_its_weights_is_skipped_by_their_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "find_minilm", lambda: None)
    context = results.Context(results.Piece("6"), tmp_path, tmp_path)
    quickstart.train_longer(context)
    assert "all-MiniLM-L6-v2 is missing" in context.piece.skipped and not context.piece.failures
    monkeypatch.undo()
    monkeypatch.setenv("MINILM", str(tmp_path))
    assert texts.find_minilm() == tmp_path


def test_the_minutes_of_a_part_can_be_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINUTES", "0")
    completed = run_script(tmp_path, "0")
    piece = results.Piece.read(tmp_path / "results" / "gpu" / "0.json")
    assert completed.returncode == 0 and piece.notes and all("0 minutes were over" in note for note in piece.notes)
