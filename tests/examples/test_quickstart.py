"""Run the script behind `make demo` whole, with tiny weights and two steps."""

import json
import subprocess
import sys
from pathlib import Path

from moeir.artifacts import manifests
from tests.examples.shell import EXAMPLES, CommandServer, run_script

QUERIES = 120  # of each part


def write_small_collection(folder: Path) -> None:
    """The script's collection with fewer queries, and with their passages only."""
    subprocess.run([sys.executable, EXAMPLES / "docstrings.py", folder], check=True)
    passage_ids = set()
    for part in ("train", "dev", "test"):
        for file in (folder / f"{part}-queries.jsonl", folder / f"{part}.qrels"):
            lines = file.read_text(encoding="utf-8").splitlines(keepends=True)[:QUERIES]
            file.write_text("".join(lines), encoding="utf-8")
        passage_ids |= {line.split()[2] for line in lines}
    corpus = (folder / "corpus.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / "corpus.jsonl").write_text("".join(line for line in corpus if json.loads(line)["_id"] in passage_ids), encoding="utf-8")


def test_the_quickstart_runs_from_text_to_table_and_once_more_for_nothing(server: CommandServer, tiny_model: Path, tmp_path: Path) -> None:
    write_small_collection(tmp_path / "demo" / "data")
    for _ in range(2):
        completed = run_script("quickstart.sh", MOEIR=server.client, MODEL=tiny_model, STEPS=2, DEMO=tmp_path / "demo")
        assert completed.returncode == 0, completed.stderr
    rows = [line.split() for line in completed.stdout.splitlines()]
    assert rows[0][:2] == ["run", "nDCG@10"]
    assert [row[0] for row in rows[2:]] == ["bm25", "lexical", "local", "global", "fused", "uncalibrated", "fused+bm25"]
    assert all(0.0 <= float(row[1]) <= 1.0 for row in rows[2:])
    assert float(rows[2][1]) > 0.3, "BM25 retrieves passages by their first sentences"
    page = (tmp_path / "demo" / "report.html").read_text(encoding="utf-8")
    assert "fused+bm25" in page and "default-src 'none'" in page
    checkpoints = tmp_path / "demo" / "checkpoint"
    assert [manifests.read_manifest(checkpoints / name)["counts"]["queries_read"] for name in ("first", "second")] == [16, 16]
    assert manifests.read_manifest(checkpoints / "second")["settings"]["skip-queries"] == 16, "those that the first training read"
    assert set(manifests.read_manifest(checkpoints / "calibrated")["counts"]["scales"]) == {"lexical", "local", "global"}
    assert completed.stderr.count("already made") == 17, "the second run skips every finished stage"
