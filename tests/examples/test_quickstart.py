"""Run the script behind `make demo` whole, with tiny weights and two steps."""

import json
from pathlib import Path

from moeir.artifacts import manifests
from tests.examples.shell import CommandServer, parse_tables, run_program, run_script

QUERIES = 60  # of each kind and part
KINDS = ("description", "name")
ROWS = ["fused", "lexical", "local", "global", "bm25", "untrained", "uncalibrated", "fused+bm25"]


def write_small_collection(folder: Path) -> None:
    """The script's collection with fewer queries of each kind, and with their passages only."""
    assert run_program("docstrings.py", folder).code == 0
    passage_ids = set()
    for part in ("train", "dev", "test"):
        for file in (folder / f"{part}-queries.jsonl", folder / f"{part}.qrels"):
            lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
            by_kind = ([line for line in lines if line.removeprefix('{"_id": "').startswith(f"{kind}-")] for kind in KINDS)
            lines = [line for part_of_kind in by_kind for line in part_of_kind[:QUERIES]]
            file.write_text("".join(lines), encoding="utf-8")
        for kind in KINDS:
            judged = [line for line in lines if line.startswith(f"{kind}-")]
            (folder / f"{part}-{kind}.qrels").write_text("".join(judged), encoding="utf-8")
        passage_ids |= {line.split()[2] for line in lines}
    corpus = (folder / "corpus.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / "corpus.jsonl").write_text("".join(line for line in corpus if json.loads(line)["_id"] in passage_ids), encoding="utf-8")


def test_the_quickstart_runs_from_text_to_table_and_once_more_for_nothing(server: CommandServer, tiny_model: Path, tmp_path: Path) -> None:
    write_small_collection(tmp_path / "demo" / "data")
    for _ in range(2):
        completed = run_script("quickstart.sh", MOEIR=server.client, MODEL=tiny_model, STEPS=2, DEMO=tmp_path / "demo")
        assert completed.returncode == 0, completed.stderr
    together, by_kind, wins = parse_tables(completed.stdout)
    assert together == (["nDCG@10", "RR@10", "R@100"], ROWS)
    assert by_kind == (list(KINDS), ROWS)
    assert wins[0] == ["group", "queries", "run", "wins", "share", "nDCG@10"] and wins[1] == ["all"] * 4 + ["kind"] * 8
    cells = [line.split() for line in completed.stdout.splitlines() if line.startswith("bm25 ")]
    assert len(cells) == 2 and all(float(cell) > 0.3 for cell in (cells[0][1], *cells[1][1:])), "BM25 finds both kinds"
    page = (tmp_path / "demo" / "report.html").read_text(encoding="utf-8")
    assert "fused+bm25" in page and "default-src 'none'" in page
    checkpoints = tmp_path / "demo" / "checkpoint"
    assert manifests.read_manifest(checkpoints / "second")["settings"]["skip-queries"] == 16, "those that the first training read"
    assert set(manifests.read_manifest(checkpoints / "calibrated")["counts"]["weights"]) == {"lexical", "local", "global"}
    assert completed.stderr.count("already made") == 22, "the second run skips every finished stage"
