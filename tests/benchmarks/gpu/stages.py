"""Stages of moeir in this process or in one of its own, and when each step of a training ended on the device."""

import atexit
import contextlib
import gc
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from moeir import cli, console
from moeir.errors import MoeirError
from tests.benchmarks.gpu.results import ROOT, Context, log

METRICS = "metrics.jsonl"
OUT_OF_MEMORY = re.compile("out of memory", re.IGNORECASE)
PEAK_SIDE, TOY_SIDE = 8192, 128


class OutOfMemory(Exception):
    """The card is out of memory."""


def run_stage(*arguments: object) -> None:
    """`moeir ARGUMENTS` in this process; errors pass, those of memory as OutOfMemory."""
    console.configure_logging()
    problem, code = None, 0
    torch.use_deterministic_algorithms(False)
    try:
        code = cli._invoke([str(argument) for argument in arguments])
    except (RuntimeError, MoeirError) as raised:
        if not OUT_OF_MEMORY.search(str(raised)):
            raise
        problem = " ".join(str(raised).split())[:200]  # not the exception itself: its frames hold what fills the card
    finally:
        release_memory()
    if problem:
        raise OutOfMemory(problem)
    if code:
        raise RuntimeError(f"moeir {arguments[0]} ended with {code}")


def run_killed(arguments: Sequence[str], kill_after: int | None) -> int:
    """`moeir ARGUMENTS`, killed after so many optimiser steps; its exit code."""
    steps = 0

    def count(*given: object) -> None:
        nonlocal steps
        steps += 1
        if steps == kill_after:
            os.kill(os.getpid(), signal.SIGKILL)

    register_optimizer_step_post_hook(count)
    console.configure_logging()
    return cli._exit_code(list(arguments))


def start_stage(context: Context, *arguments: object, kill_after: int | None = None, folder: Path | None = None) -> "subprocess.Popen[str]":
    """`moeir ARGUMENTS` in a process of its own, started, on the same device."""
    options = ["--pretend"] if context.pretend else []
    options += [] if kill_after is None else ["--kill-after", str(kill_after)]
    command = [sys.executable, "-m", "tests.benchmarks.gpu", "stage", *options, "--", *map(str, arguments)]
    return start(command, folder)


def start(command: Sequence[str], folder: Path | None = None) -> "subprocess.Popen[str]":
    """A program that imports from the checkout, its output kept."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"PYTHONPATH": path}
    process = subprocess.Popen(command, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    atexit.register(process.kill)  # nothing is left behind where this program is interrupted; a process that has ended is not killed
    return process


def wait(context: Context, process: "subprocess.Popen[str]", expected: int = 0) -> None:
    """RuntimeError with the last output of a process that does not end as expected or in time."""
    try:
        output, _ = process.communicate(timeout=max(1.0, context.seconds_left()))
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
        raise RuntimeError(f"not done in time; its last words: {output[-300:]}") from None
    if process.returncode != expected:
        raise RuntimeError(f"ended with {process.returncode}, not {expected}: {output[-1500:]}")


def read_metrics(checkpoint: Path, *, without: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The lines of a training's metrics file, without some of the metrics."""
    lines = map(json.loads, (checkpoint / METRICS).read_text(encoding="utf-8").splitlines())
    return [{name: value for name, value in line.items() if name not in without} for line in lines]


class StepTimes:
    """Records the end of each optimiser step on the device's clock, and peak memory of tensors by then."""

    def __init__(self, on_step: Callable[[], None] | None = None) -> None:
        self._on_step = on_step
        self._events: list[Any] = []
        self.peak_bytes = 0

    def __enter__(self) -> "StepTimes":
        torch.cuda.reset_peak_memory_stats()
        self._handle = register_optimizer_step_post_hook(self._note)
        return self

    def __exit__(self, *problem: object) -> None:
        self._handle.remove()

    def _note(self, optimiser: Optimizer, arguments: Any, options: Any) -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._events.append(event)
        self.peak_bytes = max(self.peak_bytes, torch.cuda.max_memory_allocated())
        if self._on_step is not None:
            self._on_step()

    def __len__(self) -> int:
        return len(self._events)

    def seconds(self, warm: int) -> list[float]:
        """Seconds of each step after the first `warm`."""
        torch.cuda.synchronize()
        return [before.elapsed_time(after) / 1000 for before, after in pairwise(self._events[max(0, warm - 1) :])]


def take_turns(context: Context, ways: Mapping[Any, Callable[[], dict[str, float]]], *, seconds_to_keep: float) -> dict[Any, list[Any]]:
    """Up to three turns of all ways: what each run of a way has measured, and the seconds of the whole `run`."""
    measured: dict[Any, list[Any]] = {key: [] for key in ways}
    longest = 0.0
    for turn in range(1 if context.toy else 3):
        for key, way in ways.items():
            if context.seconds_left() < seconds_to_keep + longest or (turn and not measured[key]):  # it failed before
                continue
            before = context.seconds_left()
            with context.attempt(", ".join(map(str, key))):
                log(f"turn {turn + 1}: {key}")
                measured[key].append(way() | {"run": before - context.seconds_left()})
            longest = max(longest, before - context.seconds_left())
    if missing := [", ".join(map(str, key)) for key, runs in measured.items() if not runs]:
        context.piece.notes.append(f"Not measured: {'; '.join(missing)}.")
    return measured


def time_on_device(work: Callable[[], Any], repeats: int = 5) -> float:
    """Median seconds of some work with the device synchronized before and after it, after one warm-up run."""
    work()
    seconds = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def measure_peak(toy: bool, dtype: torch.dtype = torch.bfloat16) -> float:
    """Multiplications and additions a second of a large product of matrices."""
    side = TOY_SIDE if toy else PEAK_SIDE
    first, second = (torch.randn(side, side, device="cuda", dtype=dtype) for _ in range(2))
    return 2 * side**3 / time_on_device(lambda: [first @ second for _ in range(5)], 10) * 5


def release_memory() -> None:
    """Free cached memory of the card."""
    gc.collect()
    torch.cuda.empty_cache()


@contextlib.contextmanager
def peak_memory() -> Iterator[dict[str, int]]:
    """Peak bytes of tensors on the card in the block, beyond those before it."""
    release_memory()
    torch.cuda.reset_peak_memory_stats()
    used_bytes = {"before": torch.cuda.memory_allocated()}
    yield used_bytes
    torch.cuda.synchronize()
    used_bytes["bytes"] = torch.cuda.max_memory_allocated() - used_bytes["before"]


def gib(count: float) -> float:
    """Bytes as GiB."""
    return count / 2**30


def with_flags(arguments: Sequence[str], flags: Mapping[str, object]) -> list[str]:
    """A command line in which some flags have other values.

    >>> with_flags(["finetune", "--steps", "120", "--seed", "1"], {"--steps": 4, "--device": "cuda"})
    ['finetune', '--seed', '1', '--steps', '4', '--device', 'cuda']
    """
    other_arguments, words = [], iter(arguments)
    for word in words:
        if word in flags:
            next(words)
        else:
            other_arguments.append(word)
    return other_arguments + [str(part) for pair in flags.items() for part in pair]
