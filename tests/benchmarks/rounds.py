"""Engines and libraries timed in turns: seconds of the clock and of the processor, and ratios within rounds."""

import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from moeir import variants


class Timing(NamedTuple):
    """Seconds by the clock and by the processor."""

    clock: float
    processor: float


def time_call(work: Callable[[], Any]) -> tuple[Timing, Any]:
    """How long a call takes, and its result."""
    began, used = time.perf_counter(), time.process_time()
    result = work()
    return Timing(time.perf_counter() - began, time.process_time() - used), result


def time_rounds(ways: Mapping[str, Callable[[], Any]], rounds: int) -> tuple[list[dict[str, Timing]], dict[str, Any]]:
    """Each way once in every round, in turns, after a round that does not count; the last results."""
    timings, results = [], dict[str, Any]()
    for _ in range(rounds + 1):
        measured = {name: time_call(way) for name, way in ways.items()}
        timings.append({name: timing for name, (timing, _) in measured.items()})
        results = {name: result for name, (_, result) in measured.items()}
    return timings[1:], results


def format_speed(timings: list[dict[str, Timing]], name: str, reference: str, count: int) -> str:
    """Cells of a table: items a second, times the reference's (least, most), and the same in processor time."""
    ratios = [one[reference].clock / one[name].clock for one in timings]
    used = statistics.median(one[reference].processor / one[name].processor for one in timings)
    speed = count / statistics.median(one[name].clock for one in timings)
    return f"{speed:,.1f} | {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) | {used:.2f}"


def build_or_open_index(folder: Path, spec: str, documents: Any) -> tuple[Any, Path]:
    """An index opened from disk, built first if it is missing, and its folder."""
    index_folder = folder / f"{spec.replace(':', '-').replace('=', '-')}-{len(documents)}"
    make_index = variants.bind_variant("indexes", spec)
    if not (index_folder / "engine.json").exists():
        index = make_index()
        timing, _ = time_call(lambda: index.add(documents))
        index.save(index_folder)
        print(f"{spec}: built in {timing.clock:.1f} s")
    return make_index.func.open(index_folder), index_folder
