"""Engines and libraries timed in turns: seconds of the clock and of the processor, and ratios within rounds; what the programs share."""

import argparse
import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from moeir import variants


def make_parser(description: str | None, paths: Iterable[str] = (), **numbers: int) -> argparse.ArgumentParser:
    """A parser of paths by their position, and of whole numbers with defaults: `queries_used=8` is --queries-used."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in paths:
        parser.add_argument(name, type=Path)
    for name, default in numbers.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
    return parser


def run_command(*arguments: object) -> None:
    """Run a moeir command in this process; it must succeed."""
    from moeir import cli

    if cli._exit_code([str(argument) for argument in arguments]):
        raise SystemExit(f"{arguments}: failed")


def run_program(command: Iterable[object], threads: int) -> dict[str, float]:
    """What a program prints as JSON in its last line, run with so many threads and without the Hub."""
    environment = os.environ | dict.fromkeys(("OMP_NUM_THREADS", "RAYON_NUM_THREADS"), str(threads)) | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    measurements: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measurements


def open_bm25s(contents: list[str], depth: int, threads: int) -> Callable[[list[str]], Any]:
    """bm25s with its numba backend and Porter's stems, which answers several queries at once."""
    import bm25s
    import Stemmer

    def tokenize(texts: list[str]) -> Any:
        return bm25s.tokenize(texts, stopwords="en", stemmer=stemmer, show_progress=False)

    stemmer = Stemmer.Stemmer("porter")
    index = bm25s.BM25(k1=0.9, b=0.4, method="lucene", backend="numba")
    index.index(tokenize(contents), show_progress=False)
    return lambda queries: index.retrieve(tokenize(queries), k=depth, show_progress=False, n_threads=threads)


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
