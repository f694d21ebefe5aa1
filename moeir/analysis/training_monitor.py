"""Monitor of a training: its metrics so far, and alarms when an expert wins all queries or starves, or a loss stalls.

The state depends on the lines of `metrics.jsonl` only: a resumed training replays the lines on disk.
"""

import itertools
import math
import sys
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from moeir.artifacts import atomic_write
from moeir.errors import ArtifactError, DataError
from moeir.records import texts

METRICS_FILE = "metrics.jsonl"
WINDOW, RECENT, MAX_POINTS = 500, 50, 128  # steps, steps, intervals
LOSS_MEASURE = "loss"  # of a development set: the lowest is the best, `dev.loss`; of any other measure the highest
COLLAPSE_ABOVE = 0.95  # share of queries in which one expert has the largest share
STARVATION_BELOW = 0.01  # usage of an expert relative to uniform usage of its router
UNIFORM_LOSS = "uniform_loss"  # metric: the contrastive loss of a model that gives all candidates of a query the same score
STALL_MIN, STALL_MAX = 0.95, 1.05  # loss relative to that of equal scores
BOTTLENECK_GAIN = "bottleneck_gain"  # metric: nats per token that a decoder owes to the vector
COLLAPSE_ADVICE = "raise temperature or standardised of --objective competitive"
STALL_ADVICE = "set a lower --temperature (or a larger scale in --arch), or another --learning-rate"
STARVATION_ADVICE = "raise load_balance of --objective"


class MetricHistory:
    """One metric over a training: the steps that have it, and its values."""

    def __init__(self) -> None:
        self.steps, self.values = list[int](), array("d")

    def add(self, step: int, value: float) -> None:
        self.steps.append(step)
        self.values.append(value)

    @property
    def mean(self) -> float:
        """Mean over the last 500 steps."""
        return _mean(self.values[-WINDOW:])

    @property
    def recent_mean(self) -> float:
        """Mean over the last 50 steps."""
        return _mean(self.values[-RECENT:])

    def points(self) -> list[tuple[int, float]]:
        """Last step and mean of each interval: of 1, 2, 4, … steps, so that there are at most 128."""
        size = 1
        while len(self.values) // size >= MAX_POINTS:
            size *= 2
        blocks = (slice(first, first + size) for first in range(0, len(self.values), size))
        return [(self.steps[block][-1], _mean(self.values[block])) for block in blocks]


def _mean(values: "array[float]") -> float:
    return sum(values) / len(values)


@dataclass(frozen=True)
class Alarm:
    """A problem of the training: its first step and what to do."""

    step: int
    message: str

    def __str__(self) -> str:
        return f"step {self.step:,}: {self.message}"


class TrainingMonitor:
    """Metrics and alarms of a training so far."""

    def __init__(self) -> None:
        self.step, self.histories = 0, dict[str, MetricHistory]()
        self.routers: dict[str, list[str]] = {}  # usage metrics of each router, by expert
        self.best: dict[str, tuple[float, int]] = {}
        self.alarms: list[Alarm] = []
        self._alarmed: set[str] = set()  # metrics that had an alarm

    def update(self, facts: Mapping[str, float]) -> list[Alarm]:
        """Add the metrics of one step; return the alarms that start with it; a metric has one alarm."""
        self.step = int(facts["step"])
        for name, value in facts.items():
            if name == "step" or not _is_finite(value):
                continue
            if name not in self.histories:
                self._register(name)
            self.histories[name].add(self.step, value)
            if name.startswith("dev."):
                best, sign = self.best.get(name), -1 if name.rpartition(".")[2] == LOSS_MEASURE else 1
                self.best[name] = (value, self.step) if best is None or sign * value > sign * best[0] else best
        checks = (self._check_collapse, self._check_starvation, self._check_stall)
        new_alarms = list(itertools.chain.from_iterable(check() for check in checks))
        self.alarms += new_alarms
        return new_alarms

    def __getitem__(self, name: str) -> MetricHistory:
        return self.histories[name]

    def __contains__(self, name: str) -> bool:
        return name in self.histories

    @property
    def tokens_per_second(self) -> float | None:
        """Throughput over the last 50 steps."""
        tokens, seconds = (sum(self[name].values[-RECENT:]) if name in self else 0.0 for name in ("tokens", "seconds"))
        return tokens / seconds if seconds else None

    def _register(self, name: str) -> None:
        self.histories[name] = MetricHistory()
        kind, _, expert = name.partition(".")
        if kind == "usage":
            self.routers.setdefault(expert.rpartition(".")[0], []).append(name)

    def _alarm(self, names: Collection[str], message: str, advice: str) -> Iterator[Alarm]:
        """One alarm for all these metrics, if there are any that had none."""
        if not self._alarmed.issuperset(names):
            self._alarmed.update(names)
            yield Alarm(self.step, f"{message}; {advice}")

    def _check_collapse(self) -> Iterator[Alarm]:
        """Alarm if one expert has the largest share of nearly all queries."""
        rivals = [name for name in self.histories if name.startswith("wins.")]
        for name in (name for name in rivals if len(rivals) > 1 and len(self[name].values) >= WINDOW):
            if (share := round(self[name].mean, 9)) > COLLAPSE_ABOVE:
                message = f"{name.removeprefix('wins.')} had the largest share of {share:.1%} of the queries of the last {WINDOW} steps"
                yield from self._alarm([name], f"{message}, and the others learn little", COLLAPSE_ADVICE)

    def _check_starvation(self) -> Iterator[Alarm]:
        """Alarm if a router hardly selects an expert; experts of one router that start to starve together share one alarm."""
        for router, names in self.routers.items():
            full = (name for name in names if len(self[name].values) >= WINDOW and name not in self._alarmed)
            starving = [name for name in full if round(self[name].mean * len(names), 9) < STARVATION_BELOW]
            shares = ", ".join(f"{name.rpartition('.')[2]} ({self[name].mean:.2%})" for name in starving)
            message = f"{router} hardly selects expert {shares} in the last {WINDOW} steps, where {1 / len(names):.1%} is uniform"
            yield from self._alarm(starving, message, STARVATION_ADVICE)

    def _check_stall(self) -> Iterator[Alarm]:
        """Alarm if a contrastive loss stays where equal scores of all candidates would put it; while the learning rate still rises, only
        after 500 steps."""
        uniform = self.histories.get(UNIFORM_LOSS)
        if uniform is None or len(uniform.values) < RECENT or (len(uniform.values) < WINDOW and self._rate_rises()):
            return
        expected = uniform.recent_mean
        for name in (name for name in self.histories if name.startswith("loss.") and expected > 0):
            if STALL_MIN <= round(self[name].recent_mean / expected, 9) <= STALL_MAX:
                message = f"{name} is {self[name].recent_mean:.3f} over the last {RECENT} steps, and {expected:.3f} is the loss if all "
                message += f"{math.exp(expected):,.0f} candidates have the same score: the model learns nothing"
                yield from self._alarm([name], message, STALL_ADVICE)

    def _rate_rises(self) -> bool:
        rates = list(self["learning_rate"].values[-2:]) if "learning_rate" in self else []
        return len(rates) == 2 and rates[1] > rates[0]


def replay(steps: Iterable[Mapping[str, float]]) -> TrainingMonitor:
    """Monitor of a training rebuilt from its steps."""
    monitor = TrainingMonitor()
    for facts in steps:
        monitor.update(facts)
    return monitor


def find_metrics(training: Path) -> Path:
    """Path of the `metrics.jsonl` of a training, finished or not, from its output folder or the file itself; ArtifactError if absent."""
    unfinished = [atomic_write.partial_path(training) / METRICS_FILE] if training.name else []
    candidates = [training / METRICS_FILE, *unfinished, training]
    metrics = next((path for path in candidates if path.is_file()), None)
    if metrics is None:
        missing = f"{training}: has no {METRICS_FILE}" if training.is_dir() else f"{training}: no such training"
        raise ArtifactError(f"{missing}: moeir finetune and pretrain write one with their first step")
    return metrics


def read_metrics(path: Path) -> Iterator[dict[str, float]]:
    """Every step of a `metrics.jsonl`, without a last line that is still being written."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            facts = texts.parse_json(line.decode(errors="replace"), f"{path}:{number}")
            if not isinstance(facts, dict) or not isinstance(facts.get("step"), int):
                raise DataError(f"{path}:{number}: expected the metrics of a training step, an object with a `step`")
            yield facts


def _is_finite(value: object) -> bool:
    """Whether a value is a number, and none that is infinite as a float."""
    return isinstance(value, int | float) and abs(value) <= sys.float_info.max
