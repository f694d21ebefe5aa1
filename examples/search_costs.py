"""Latency and size of searches in one table: of the manifests that `moeir search` writes, and of the files of the indexes.

    python examples/search_costs.py runs/bm25=idx/bm25 runs/local=idx/came/local runs/fused=idx/came     # RUNS=INDEX

A search with --batch-size 1 measures single queries; with larger batches a percentile is that of a query's whole batch. Columns:
gigabytes of the index or of one expert's folder in it, milliseconds to encode and to search a query, queries a second of both together.
"""

import json
import sys
from pathlib import Path
from typing import Any

from moeir.evaluation import tables

HEADER = ["run", "index GB", "encode p50", "search p50", "p95", "p99", "queries/s", "batch"]


def search_costs(folder: Path, index: Path) -> list[object]:
    """A row of the table; BM25 encodes nothing."""
    speed: dict[str, Any] = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["counts"]["speed"]
    size = sum(file.stat().st_size for file in index.rglob("*") if file.is_file())
    encode, search = speed.get("encode"), speed["search"]
    encode_p50 = f"{encode['p50_ms']:.1f}" if encode else "-"
    percentiles = [f"{search[name]:.1f}" for name in ("p50_ms", "p95_ms", "p99_ms")]
    seconds_per_query = sum(1 / part["queries_per_second"] for part in (encode, search) if part)
    return [folder.name, f"{size / 1e9:.3g}", encode_p50, *percentiles, f"{1 / seconds_per_query:.1f}", speed["batch_size"]]


def main(pairs: list[str]) -> None:
    rows = []
    for pair in pairs:
        folder, separator, index = pair.partition("=")
        if not separator or not Path(folder, "manifest.json").is_file() or not Path(index).is_dir():
            sys.exit(f"{pair}: expected RUNS=INDEX, the output folders of moeir search and moeir index\n\n{__doc__}")
        rows.append(search_costs(Path(folder), Path(index)))
    sys.stdout.write(tables.format_table(HEADER, rows) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
