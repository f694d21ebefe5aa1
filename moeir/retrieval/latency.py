"""Latencies and throughput of the steps of a search, and the machine, for the log and the manifest."""

import os
import platform
import resource
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from moeir.artifacts import manifests
from moeir.console import format_bytes, format_count

PERCENTILES = (50, 95, 99)
MAX_WARM_UP, WARM_UP_SHARE = 32, 20  # queries; one of so many


class LatencyRecorder:
    """Seconds of each batch in each step on a device; what happens once is not counted: compiling loops at their first call, and the
    queries of a warm-up, which load the index and start the threads."""

    def __init__(self, device: str = "cpu") -> None:
        self._device = device
        self.steps: dict[str, list[tuple[float, int]]] = {}
        self._compiled_before, self.warm_up_queries = _read_compile_seconds(), 0

    def end_warm_up(self, queries: int) -> None:
        """Forget the steps so far: they were a warm-up with so many queries."""
        self.steps.clear()
        self.warm_up_queries = queries

    @contextmanager
    def time_step(self, name: str, queries: int) -> Iterator[None]:
        """Time one step of a batch of queries."""
        started, before = self._now(), self.compile_seconds
        yield
        seconds = self._now() - started - (self.compile_seconds - before)
        self.steps.setdefault(name, []).append((seconds, queries))

    def _now(self) -> float:
        """Seconds, after all work queued on a CUDA device has finished."""
        if self._device.startswith("cuda"):
            import torch

            torch.cuda.synchronize(self._device)
        return time.perf_counter()

    @property
    def compile_seconds(self) -> float:
        """Seconds that compiling loops has taken since the recorder was made."""
        return _read_compile_seconds() - self._compiled_before

    def speed(self) -> dict[str, Any]:
        """Queries per second and batches of each step; if its queries were measured one by one, percentiles of their latency in ms. Beside
        them the queries of the warm-up and the seconds of compiling, which are not counted."""
        steps = {name: _summarize_batches(batches) for name, batches in self.steps.items()}
        return {"warm_up_queries": self.warm_up_queries, "compile_seconds": round(self.compile_seconds, 3), **steps}


def _read_compile_seconds() -> float:
    loops = sys.modules.get("moeir.kernels.numba_cache")
    return 0.0 if loops is None else float(loops.read_compile_seconds())


def format_speed(speed: Mapping[str, Any]) -> str:
    """`LatencyRecorder.speed` as one line of text."""
    steps = [
        f"{name} {facts['queries_per_second']:,.1f} queries/s, {_format_latency(facts)}"
        for name, facts in speed.items()
        if isinstance(facts, dict) and "queries_per_second" in facts
    ]
    once = [f"a warm-up with {format_count(speed['warm_up_queries'], 'query')}"] if speed["warm_up_queries"] else []
    once += [f"{speed['compile_seconds']:,.1f} s of compiling loops, once"] if speed["compile_seconds"] else []
    return "; ".join(steps + [f"not counted: {', '.join(once)}"] * bool(once))


def _format_latency(facts: Mapping[str, float]) -> str:
    if "p50_ms" in facts:
        return ", ".join(f"p{percent} {facts[f'p{percent}_ms']:,.2f} ms" for percent in PERCENTILES)
    count, mean = facts["batches"], f"{1000 * facts['seconds'] / facts['batches']:,.2f} ms"
    return f"one batch in {mean}" if count == 1 else f"{count:,} batches of {mean} on average"


def warm_up_size(queries: int) -> int:
    """How many of the queries are searched once before the clock starts: a twentieth, at most 32.

    >>> [warm_up_size(queries) for queries in (1, 19, 20, 300, 100_000)]
    [0, 0, 1, 15, 32]
    """
    return min(MAX_WARM_UP, queries // WARM_UP_SHARE)


def _summarize_batches(batches: Sequence[tuple[float, int]]) -> dict[str, float]:
    seconds, queries = sum(spent for spent, _ in batches), sum(count for _, count in batches)
    rate = round(queries / max(seconds, 1e-9), 3)
    facts: dict[str, float] = {"queries_per_second": rate, "seconds": round(seconds, 6), "batches": len(batches)}
    if queries == len(batches) > 1:
        latencies = zip(PERCENTILES, latency_percentiles([spent for spent, _ in batches]), strict=True)
        facts |= {f"p{percent}_ms": round(1000 * latency, 4) for percent, latency in latencies}
    return facts


def latency_percentiles(seconds: Sequence[float], wanted: Sequence[int] = PERCENTILES) -> list[float]:
    """Latencies that the given percentages of queries do not exceed.

    >>> latency_percentiles([0.3, *[0.1] * 98, 0.2], (50, 98, 99, 100))
    [0.1, 0.1, 0.2, 0.3]
    """
    latencies: list[float] = np.percentile(seconds, wanted, method="inverted_cdf").tolist()
    return latencies


@contextmanager
def limit_threads(count: int | None) -> Iterator[None]:
    """Limit the threads of torch and numba in this context; None changes nothing."""
    if count is None:
        yield
        return
    import numba
    import torch

    before = torch.get_num_threads(), numba.get_num_threads()
    numba.set_num_threads(min(count, int(vars(numba.config)["NUMBA_NUM_THREADS"])))
    torch.set_num_threads(count)
    try:
        yield
    finally:
        numba.set_num_threads(before[1])
        torch.set_num_threads(before[0])  # last: numba may change the number of a shared threading layer


def machine_info(device: str, indexes: Sequence[Path], unused: Collection[str] = ()) -> dict[str, Any]:
    """Processor, threads and device of a search, the size of its indexes on disk without `unused` experts, and the most memory that the
    process has had.

    That peak counts the pages of mapped files, too.
    """
    processor = sys.modules["torch"].cuda.get_device_name(device) if device.startswith("cuda") else _processor_name()
    files = (item for path in indexes for item in manifests.read_manifest(path)["files"].items())
    index_bytes = sum(int(facts["bytes"]) for name, facts in files if not {*unused}.intersection(name.split("/")))
    threads = {"cores": os.cpu_count(), "threads": _count_threads()}
    peak_bytes = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"processor": processor, **threads, "device": device, "index_bytes": index_bytes, "peak_memory_bytes": peak_bytes}


def _count_threads() -> int:
    """The threads that torch's operations or compiled loops use; plain numpy has one."""
    if (torch := sys.modules.get("torch")) is not None:
        return int(torch.get_num_threads())
    return int(numba.get_num_threads()) if (numba := sys.modules.get("numba")) is not None else 1


def format_machine(facts: dict[str, Any]) -> str:
    """`machine_info` as text."""
    return f"{facts['processor']}, {facts['threads']} of {facts['cores']} threads, index of {format_bytes(facts['index_bytes'])}"


def _processor_name() -> str:
    """Name of the processor, from /proc/cpuinfo if present."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
