"""Costs of searches side by side: latency, throughput, size of the indexes and memory, as `moeir search` keeps them in its manifest."""

from collections.abc import Mapping
from typing import Any

from moeir.analysis.result import AnalysisResult

MIB = 2**20
LATENCIES = ("p50_ms", "p95_ms", "p99_ms")
COLUMNS = ("run", "step", "threads", "batch", "queries/s", "p50 ms", "p95 ms", "p99 ms", "index MiB", "memory MiB")


def analyze_costs(speeds: Mapping[str, Mapping[str, Any]]) -> AnalysisResult:
    """A row per run and step of its search.

    speeds: run → the fact `speed` of a search. Latencies are None where queries were not measured one by one. Index and memory are those
    of the whole search; memory is the peak of the process, mapped parts of the index included, None in runs that did not measure it.

    >>> step = {"queries_per_second": 50.0, "p50_ms": 20.0, "p95_ms": 21.0, "p99_ms": 30.0}
    >>> machine = {"threads": 1, "index_bytes": 2**21}
    >>> analyze_costs({"bm25": {"batch_size": 1, "warm_up_queries": 3, "search": step, "machine": machine}}).rows
    [['bm25', 'search', 1, 1, 50.0, 20.0, 21.0, 30.0, 2.0, None]]
    """
    rows: list[list[object]] = []
    for name, speed in speeds.items():
        machine = speed["machine"]
        memory = machine["peak_memory_bytes"] / MIB if "peak_memory_bytes" in machine else None
        for step, facts in speed.items():
            if isinstance(facts, Mapping) and "queries_per_second" in facts:
                latencies = [facts.get(latency) for latency in LATENCIES]
                rate = [machine["threads"], speed["batch_size"], facts["queries_per_second"]]
                rows.append([name, step, *rate, *latencies, machine["index_bytes"] / MIB, memory])
    return AnalysisResult(COLUMNS, rows, number_format=",.2f")
