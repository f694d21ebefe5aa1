"""Run the script behind `make demo` whole, with tiny weights and two steps."""

import json
import shutil
import sysconfig
from pathlib import Path

from moeir.artifacts import manifests
from tests.examples.shell import CommandServer, parse_tables, run_program, run_script

MODULES = ("concurrent", "gzip.py", "json", "textwrap.py")  # of the standard library; with both kinds of queries in every part
KINDS = ("description", "name")
ROWS = ["fused", "lexical", "local", "global", "bm25", "untrained", "uncalibrated", "fused+bm25"]


def copy_modules(folder: Path, names: tuple[str, ...] = MODULES) -> Path:
    """The sources of modules and packages of the standard library."""
    folder.mkdir()
    for source in (Path(sysconfig.get_paths()["stdlib"]) / name for name in names):
        (shutil.copy if source.is_file() else shutil.copytree)(source, folder / source.name)
    return folder


def test_the_quickstart_runs_from_text_to_table_and_again_for_nothing(server: CommandServer, shallow_model: Path, tmp_path: Path) -> None:
    assert run_program("docstrings.py", tmp_path / "demo" / "data", copy_modules(tmp_path / "sources")).code == 0
    for _ in range(2):
        completed = run_script("quickstart.sh", MOEIR=server.client, MODEL=shallow_model, STEPS=2, DEMO=tmp_path / "demo")
        assert completed.returncode == 0, completed.stderr
    together, by_kind, *wins = parse_tables(completed.stdout)
    assert together == (["nDCG@10", "RR@10", "R@100"], ROWS)
    assert by_kind == (list(KINDS), ROWS)
    assert wins == [(["queries", "wins", "share", "nDCG@10"], ["lexical", "local", "global", "tied"])] * 2
    cells = [line.split() for line in completed.stdout.splitlines() if line.startswith("bm25 ")]
    assert len(cells) == 2 and all(float(cell) > 0.3 for cell in (cells[0][1], *cells[1][1:])), "BM25 finds both kinds"
    page = (tmp_path / "demo" / "report.html").read_text(encoding="utf-8")
    assert "fused+bm25" in page and "default-src 'none'" in page
    own = set((tmp_path / "demo" / "data" / "train-passages.txt").read_text(encoding="utf-8").split())
    for name in ("train-untrained", "train-mined"):
        examples = [json.loads(line) for line in (tmp_path / "demo" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]
        negatives = {name for example in examples for name in example["negative_ids"]}
        assert negatives and negatives <= own, "negatives are passages of modules that train"
    checkpoints = tmp_path / "demo" / "checkpoint"
    assert manifests.read_manifest(checkpoints / "second")["settings"]["skip-queries"] == 16, "those that the first training read"
    assert set(manifests.read_manifest(checkpoints / "calibrated")["counts"]["weights"]) == {"lexical", "local", "global"}
    assert completed.stderr.count("already made") == 22, "the second run skips every finished stage"
