"""Costs of searches side by side: latency, throughput, size of the indexes and peak memory, from the manifests of `moeir search`.

    python examples/costs.py RUN...

Each RUN is the folder of a search, or a file with its manifest beside it. A latency is - where queries were searched in batches.
"""

import sys
from pathlib import Path
from typing import Any

from moeir.artifacts import manifests
from moeir.errors import ArtifactError, MoeirError
from moeir.evaluation import tables

MIB = 2**20
LATENCIES = ("p50_ms", "p95_ms", "p99_ms")
HEADER = ("run", "step", "threads", "batch", "queries/s", "p50 ms", "p95 ms", "p99 ms", "index MiB", "memory MiB")


def read_speed(run: Path) -> dict[str, Any]:
    """The fact `speed` of the search that wrote a run; ArtifactError for any other run."""
    counts = manifests.read_manifest(run)["counts"]
    if "speed" not in counts:
        raise ArtifactError(f"{run}: its costs are not known; expected a run that moeir search wrote")
    return dict(counts["speed"])


def list_costs(name: str, speed: dict[str, Any]) -> list[list[object]]:
    """A row for each step of a search. Index and memory are those of the whole search; the memory includes mapped parts of the index."""
    machine = speed["machine"]
    sizes = [machine["index_bytes"] / MIB, machine["peak_memory_bytes"] / MIB]
    steps = {step: facts for step, facts in speed.items() if isinstance(facts, dict) and "queries_per_second" in facts}
    return [
        [name, step, machine["threads"], speed["batch_size"], facts["queries_per_second"], *map(facts.get, LATENCIES), *sizes]
        for step, facts in steps.items()
    ]


def main(paths: list[Path]) -> None:
    rows = [row for path in paths for row in list_costs(path.stem, read_speed(path))]
    sys.stdout.write(tables.format_table(HEADER, rows, ",.2f") + "\n")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    try:
        main([Path(path) for path in sys.argv[1:]])
    except MoeirError as problem:
        sys.exit(f"error: {problem}")
