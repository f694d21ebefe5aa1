"""Monitor of a training: means, trends and histories of its metrics, and alarms when experts collapse or starve.

The state depends on the lines of `metrics.jsonl` only: a resumed training replays the lines on disk.
"""

import itertools
import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import mul
from pathlib import Path

from moeir.artifacts import making
from moeir.errors import ArtifactError, DataError
from moeir.records import texts

METRICS = "metrics.jsonl"
WINDOW, RECENT, FEWEST, POINTS = 500, 50, 8, 128
MOST, ENDS_BELOW = 0.95, 0.90  # share of queries in which one expert has the largest share
LEAST, ENDS_ABOVE = 0.01, 0.02  # usage of an expert relative to uniform usage of its router
COMPETE = "raise temperature or standardised of --objective competitive"
BALANCE = "raise load_balance of --objective"


class Course:
    """One metric over a training: the values of the last 500 steps, and at most 128 means over equal intervals."""

    def __init__(self) -> None:
        self.last: deque[float] = deque(maxlen=WINDOW)
        self.total = self.whole = self._sum = 0.0
        self._points: list[tuple[int, float]] = []
        self._stretch, self._count, self._step = 1, 0, 0

    def add(self, step: int, value: float) -> None:
        if len(self.last) == WINDOW:
            self.total -= self.last[0]
        self.last.append(value)
        self.total += value
        self.whole += value
        self._sum, self._count, self._step = self._sum + value, self._count + 1, step
        if self._count == self._stretch:
            self._points.append((step, self._sum / self._count))
            self._sum, self._count = 0.0, 0
            if len(self._points) == POINTS:
                pairs = zip(self._points[::2], self._points[1::2], strict=True)
                self._points = [(later[0], (earlier[1] + later[1]) / 2) for earlier, later in pairs]
                self._stretch *= 2

    @property
    def mean(self) -> float:
        """Mean over the last 500 steps."""
        return self.total / len(self.last)

    @property
    def trend(self) -> int | None:
        """1 if the mean of the last 50 steps exceeds that of the last 500 by two standard errors, -1 if below, else 0; None if too few.

        >>> history = MetricHistory(); [history.add(step, float(step > 90)) for step in range(100)][0]; history.trend
        1
        """
        if len(self.last) < FEWEST:
            return None
        recent = min(RECENT, len(self.last) // 4)
        mean = sum(itertools.islice(self.last, len(self.last) - recent, None)) / recent
        spread = max(0.0, sum(map(mul, self.last, self.last)) / len(self.last) - self.mean**2)
        beyond = abs(mean - self.mean) > max(2 * math.sqrt(spread / recent), 1e-9)
        return int(beyond) if mean > self.mean else -int(beyond)

    def points(self) -> list[tuple[int, float]]:
        """Last step and mean of each interval."""
        return [*self._points, (self._step, self._sum / self._count)] if self._count else list(self._points)


@dataclass(frozen=True)
class Alarm:
    """A problem of the training: its first step and what to do."""

    step: int
    words: str

    def __str__(self) -> str:
        return f"step {self.step:,}: {self.words}"


class Watch:
    """Metrics and alarms of a training so far."""

    def __init__(self) -> None:
        self.step, self.facts, self.courses = 0, dict[str, float](), dict[str, Course]()
        self.experts: list[str] = []  # names with a loss or share: experts, sums of experts, losses of a pre-training
        self.routers: dict[str, list[str]] = {}  # usage metrics of each router, by expert
        self.best: dict[str, tuple[float, int]] = {}
        self.alarms: list[Alarm] = []
        self._lasting: dict[str, Alarm] = {}

    def take(self, facts: Mapping[str, float]) -> list[Alarm]:
        """Add the metrics of one step; return the alarms that start with it. An active alarm is not repeated."""
        self.step = int(facts["step"])
        for name, value in facts.items():
            if name == "step" or not isinstance(value, int | float) or not math.isfinite(value):
                continue
            if name not in self.courses:
                self._meet(name)
            self.courses[name].add(self.step, value)
            self.facts[name] = value
            if name.startswith("dev.") and value > self.best.get(name, (-math.inf, 0))[0]:
                self.best[name] = (value, self.step)
        new_alarms = [*self._collapsed(), *self._starving()]
        self.alarms += new_alarms
        return new_alarms

    def __getitem__(self, name: str) -> Course:
        return self.courses[name]

    def __contains__(self, name: str) -> bool:
        return name in self.courses

    @property
    def lasting(self) -> list[Alarm]:
        """Alarms whose cause persists."""
        return list(dict.fromkeys(self._lasting.values()))

    @property
    def tokens_per_second(self) -> float | None:
        """Throughput over the last 50 steps."""
        tokens, seconds = (sum(list(self[name].last)[-RECENT:]) if name in self else 0.0 for name in ("tokens", "seconds"))
        return tokens / seconds if seconds else None

    def starves(self, name: str) -> bool:
        """Whether the usage of an expert is below 1 % of uniform usage."""
        return name in self._lasting

    def _meet(self, name: str) -> None:
        self.courses[name] = Course()
        kind, _, expert = name.partition(".")
        if kind in ("share", "loss") and expert and expert not in self.experts:
            self.experts.append(expert)
        if kind == "usage":
            self.routers.setdefault(expert.rpartition(".")[0], []).append(name)

    def _collapsed(self) -> Iterator[Alarm]:
        """Alarm if one expert has the largest share of nearly all queries."""
        rivals = [name for name in self.courses if name.startswith("wins.")]
        for name in rivals if len(rivals) > 1 else ():
            course = self.courses[name]
            if len(course.last) < WINDOW:
                continue
            share = round(course.mean, 9)
            if share <= ENDS_BELOW:
                self._lasting.pop(name, None)
            elif share > MOST and name not in self._lasting:
                message = f"{name.removeprefix('wins.')} had the largest share of {share:.1%} of the queries of the last {WINDOW} steps"
                self._lasting[name] = Alarm(self.step, f"{message}, and the others learn little; {COMPETE}")
                yield self._lasting[name]

    def _starving(self) -> Iterator[Alarm]:
        """Alarm if a router hardly selects an expert; experts of one router that start to starve together share one alarm."""
        for router, names in self.routers.items():
            starved = []
            for name in names:
                course = self.courses[name]
                relative_share = round(course.mean * len(names), 9)
                if relative_share >= ENDS_ABOVE:
                    self._lasting.pop(name, None)
                elif relative_share < LEAST and len(course.last) == WINDOW and name not in self._lasting:
                    starved.append(name)
            if starved:
                shares = ", ".join(f"{name.rpartition('.')[2]} ({self.courses[name].mean:.2%})" for name in starved)
                message = f"{router} hardly selects expert {shares} in the last {WINDOW} steps, where {1 / len(names):.1%} is uniform"
                alarm = Alarm(self.step, f"{message}; {BALANCE}")
                self._lasting |= dict.fromkeys(starved, alarm)
                yield alarm


def rebuilt(steps: Iterable[Mapping[str, float]]) -> Watch:
    """Monitor of a training rebuilt from its steps."""
    watch = Watch()
    for facts in steps:
        watch.take(facts)
    return watch


def kept(path: Path, size: int) -> Iterator[dict[str, float]]:
    """Steps in the first `size` bytes of `metrics.jsonl`."""
    if size:
        with open(path, "rb") as file:
            yield from _steps(file.read(size).splitlines(keepends=True), path)


def metrics_of(training: Path) -> Path:
    """Path of the `metrics.jsonl` of a training, finished or not, from its output folder or the file itself; ArtifactError if absent."""
    unfinished = [making.beside_of(training) / METRICS] if training.name else []
    candidates = [training / METRICS, *unfinished, training]
    metrics = next((path for path in candidates if path.is_file()), None)
    if metrics is None:
        missing = f"{training}: has no {METRICS}" if training.is_dir() else f"{training}: no such training"
        raise ArtifactError(f"{missing}: moeir finetune and pretrain write one with their first step")
    return metrics


def read(path: Path) -> Iterator[dict[str, float]]:
    """Every step of a `metrics.jsonl`, without an incomplete last line. DataError if it is empty."""
    with open(path, "rb") as file:
        steps = _steps(file, path)
        if (first := next(steps, None)) is None:
            raise DataError(f"{path}: is empty; expected one line per training step")
        yield from itertools.chain([first], steps)


def _steps(lines: Iterable[bytes], path: Path) -> Iterator[dict[str, float]]:
    for number, line in enumerate(lines, start=1):
        if not line.endswith(b"\n"):
            return
        try:
            facts = texts.loaded(line.decode(), f"{path}:{number}")
        except UnicodeDecodeError:
            raise DataError(f"{path}:{number}: not UTF-8 text; expected the metrics of a training step") from None
        if not isinstance(facts, dict) or not isinstance(facts.get("step"), int):
            raise DataError(f"{path}:{number}: expected the metrics of a training step, an object with a `step`")
        yield facts
