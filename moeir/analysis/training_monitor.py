"""Monitor of a training: means and histories of its metrics, and alarms when experts collapse, starve or do not compete, a loss
stalls, or a decoder does not use its vectors.

The state depends on the lines of `metrics.jsonl` only: a resumed training replays the lines on disk.
"""

import itertools
import math
import sys
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from moeir.artifacts import atomic_write
from moeir.errors import ArtifactError, DataError
from moeir.records import texts

METRICS_FILE = "metrics.jsonl"
WINDOW, RECENT, MAX_POINTS = 500, 50, 128
LOSS_MEASURE = "loss"  # of a development set: the lowest is the best, `dev.loss`; of any other measure the highest
COLLAPSE_ABOVE = 0.95  # share of queries in which one expert has the largest share
EQUALITY_ABOVE = 0.95  # mean entropy of the shares relative to its maximum
STARVATION_BELOW = 0.01  # usage of an expert relative to uniform usage of its router
UNIFORM_LOSS = "uniform_loss"  # metric: the contrastive loss of a model that gives all candidates of a query the same score
STALL_MIN, STALL_MAX = 0.95, 1.05  # loss relative to that of equal scores
DECODER_RATE, BOTTLENECK_GAIN = "learning_rate.decoder", "bottleneck_gain"  # metrics: nats per token that a decoder owes to the vector
LEARNED_RATE_SUM = 0.1  # sum of a decoder's learning rates after which it uses vectors that say something
GAIN_BELOW, MIN_GAINS, RECENT_GAINS = 0.01, 2, 3
COLLAPSE_ADVICE = "raise temperature or standardised of --objective competitive"
EQUALITY_ADVICE = "lower temperature of --objective competitive, or mine harder negatives"
STALL_ADVICE = "set a lower --temperature (or a larger scale in --arch), or another --learning-rate"
STARVATION_ADVICE = "raise load_balance of --objective"
BOTTLENECK_ADVICE = "raise the decoder's rate (--group-rate decoder=RATE), let it see less (window, decoder_rate) or lower mlm_weight"


class MetricHistory:
    """One metric over a training: the values of the last 500 steps, and at most 128 means over equal intervals."""

    def __init__(self) -> None:
        self.window: deque[float] = deque(maxlen=WINDOW)
        self.overall_sum = self._point_sum = 0.0
        self._points: list[tuple[int, float]] = []
        self._steps_per_point, self._point_count, self._step = 1, 0, 0

    def add(self, step: int, value: float) -> None:
        self.window.append(value)
        self.overall_sum += value
        self._point_sum, self._point_count, self._step = self._point_sum + value, self._point_count + 1, step
        if self._point_count == self._steps_per_point:
            self._points.append((step, self._point_sum / self._point_count))
            self._point_sum, self._point_count = 0.0, 0
            if len(self._points) == MAX_POINTS:
                pairs = zip(self._points[::2], self._points[1::2], strict=True)
                self._points = [(later[0], (earlier[1] + later[1]) / 2) for earlier, later in pairs]
                self._steps_per_point *= 2

    @property
    def mean(self) -> float:
        """Mean over the last 500 steps."""
        return math.fsum(self.window) / len(self.window)

    @property
    def recent_mean(self) -> float:
        """Mean over the last 50 steps."""
        recent = list(self.window)[-RECENT:]
        return sum(recent) / len(recent)

    def points(self) -> list[tuple[int, float]]:
        """Last step and mean of each interval."""
        return [*self._points, (self._step, self._point_sum / self._point_count)] if self._point_count else list(self._points)


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
        self.step, self.latest, self.histories = 0, dict[str, float](), dict[str, MetricHistory]()
        self.routers: dict[str, list[str]] = {}  # usage metrics of each router, by expert
        self.best: dict[str, tuple[float, int]] = {}
        self.alarms: list[Alarm] = []
        self._alarmed: set[str] = set()  # metrics that had an alarm
        self._late_gains: dict[str, deque[float]] = {}  # of decoders that have learned for a while

    def update(self, facts: Mapping[str, float]) -> list[Alarm]:
        """Add the metrics of one step; return the alarms that start with it; a metric has one alarm."""
        self.step = int(facts["step"])
        for name, value in facts.items():
            if name == "step" or not _is_finite(value):
                continue
            if name not in self.histories and name.startswith("usage."):
                self.routers.setdefault(name.removeprefix("usage.").rpartition(".")[0], []).append(name)
            self.histories.setdefault(name, MetricHistory()).add(self.step, value)
            self.latest[name] = value
            if name.startswith("dev."):
                best, sign = self.best.get(name), -1 if name.rpartition(".")[2] == LOSS_MEASURE else 1
                self.best[name] = (value, self.step) if best is None or sign * value > sign * best[0] else best
        checks = (self._check_collapse, self._check_equality, self._check_starvation, self._check_stall)
        new_alarms = [*itertools.chain.from_iterable(check() for check in checks), *self._check_bottleneck(facts)]
        self.alarms += new_alarms
        return new_alarms

    def __getitem__(self, name: str) -> MetricHistory:
        return self.histories[name]

    def __contains__(self, name: str) -> bool:
        return name in self.histories

    @property
    def tokens_per_second(self) -> float | None:
        """Throughput over the last 50 steps."""
        tokens, seconds = (sum(list(self[name].window)[-RECENT:]) if name in self else 0.0 for name in ("tokens", "seconds"))
        return tokens / seconds if seconds else None

    def _alarm(self, names: Collection[str], message: str, advice: str) -> Iterator[Alarm]:
        """One alarm for all these metrics, if there are any that had none."""
        if not self._alarmed.issuperset(names):
            self._alarmed.update(names)
            yield Alarm(self.step, f"{message}; {advice}")

    def _check_collapse(self) -> Iterator[Alarm]:
        """Alarm if one expert has the largest share of nearly all queries."""
        rivals = [name for name in self.histories if name.startswith("wins.")]
        for name in (name for name in rivals if len(rivals) > 1 and len(self[name].window) == WINDOW):
            if (share := round(self[name].mean, 9)) > COLLAPSE_ABOVE:
                message = f"{name.removeprefix('wins.')} had the largest share of {share:.1%} of the queries of the last {WINDOW} steps"
                yield from self._alarm([name], f"{message}, and the others learn little", COLLAPSE_ADVICE)

    def _check_equality(self) -> Iterator[Alarm]:
        """Alarm if the experts have nearly equal shares of each query although they compete."""
        name, experts = "entropy.shares", sum(metric.startswith("share.") for metric in self.histories)
        competing = self.histories.get("competing")
        if experts < 2 or name not in self or competing is None or len(competing.window) < RECENT or competing.recent_mean < 1:
            return
        if (relative := round(self[name].recent_mean / math.log(experts), 9)) > EQUALITY_ABOVE:
            message = f"the entropy of the experts' shares is {relative:.1%} of its maximum over the last {RECENT} steps"
            yield from self._alarm([name], f"{message}, so that they hardly compete", EQUALITY_ADVICE)

    def _check_starvation(self) -> Iterator[Alarm]:
        """Alarm if a router hardly selects an expert; experts of one router that start to starve together share one alarm."""
        for router, names in self.routers.items():
            full = (name for name in names if len(self[name].window) == WINDOW and name not in self._alarmed)
            starving = [name for name in full if round(self[name].mean * len(names), 9) < STARVATION_BELOW]
            shares = ", ".join(f"{name.rpartition('.')[2]} ({self[name].mean:.2%})" for name in starving)
            message = f"{router} hardly selects expert {shares} in the last {WINDOW} steps, where {1 / len(names):.1%} is uniform"
            yield from self._alarm(starving, message, STARVATION_ADVICE)

    def _check_stall(self) -> Iterator[Alarm]:
        """Alarm if a contrastive loss stays where equal scores of all candidates would put it; while the learning rate still rises, only
        after 500 steps."""
        uniform = self.histories.get(UNIFORM_LOSS)
        if uniform is None or len(uniform.window) < RECENT or (len(uniform.window) < WINDOW and self._rate_rises()):
            return
        expected = uniform.recent_mean
        for name in (name for name in self.histories if name.startswith("loss.") and expected > 0):
            if STALL_MIN <= round(self[name].recent_mean / expected, 9) <= STALL_MAX:
                message = f"{name} is {self[name].recent_mean:.3f} over the last {RECENT} steps, and {expected:.3f} is the loss if all "
                message += f"{math.exp(expected):,.0f} candidates have the same score: the model learns nothing"
                yield from self._alarm([name], message, STALL_ADVICE)

    def _check_bottleneck(self, facts: Mapping[str, float]) -> Iterator[Alarm]:
        """Alarm if decoders that have learned for a while predict as well from the vectors of other texts."""
        if DECODER_RATE not in self or self[DECODER_RATE].overall_sum <= LEARNED_RATE_SUM:
            return
        for name, gain in bottleneck_gains(facts).items():
            self._late_gains.setdefault(name, deque(maxlen=RECENT_GAINS)).append(gain)
        means = {name: round(sum(gains) / len(gains), 9) for name, gains in self._late_gains.items() if len(gains) >= MIN_GAINS}
        unused = [name for name, mean in means.items() if mean < GAIN_BELOW and name not in self._alarmed]
        gains_text = ", ".join(f"{means[name]:.3f} ({name.removeprefix(f'{BOTTLENECK_GAIN}.')})" for name in unused)
        message = f"the decoder hardly uses the texts' vectors: instead of another text's they save {gains_text} nats per token"
        yield from self._alarm(unused, message, BOTTLENECK_ADVICE)

    def _rate_rises(self) -> bool:
        if (history := self.histories.get("learning_rate")) is None:
            return False
        return len(history.window) > 1 and history.window[-1] > history.window[-2]


def bottleneck_gains(facts: Mapping[str, float]) -> dict[str, float]:
    """What each decoder of a step owes to its vectors; without Condenser's head, which owes them little by design."""
    parts = {name: value for name, value in facts.items() if name.startswith(f"{BOTTLENECK_GAIN}.") and _is_finite(value)}
    return {name: value for name, value in parts.items() if not name.endswith(".head")}


def replay(steps: Iterable[Mapping[str, float]]) -> TrainingMonitor:
    """Monitor of a training rebuilt from its steps."""
    monitor = TrainingMonitor()
    for facts in steps:
        monitor.update(facts)
    return monitor


def read_metrics_prefix(path: Path, size: int) -> Iterator[dict[str, float]]:
    """Steps in the first `size` bytes of `metrics.jsonl`."""
    if size:
        with open(path, "rb") as file:
            yield from _parse_steps(file.read(size).splitlines(keepends=True), path)


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
    """Every step of a `metrics.jsonl`, without an incomplete last line. DataError if it is empty."""
    with open(path, "rb") as file:
        steps = _parse_steps(file, path)
        if (first := next(steps, None)) is None:
            raise DataError(f"{path}: is empty; expected one line per training step")
        yield from itertools.chain([first], steps)


def _is_finite(value: object) -> bool:
    """Whether a value is a number, and none that is infinite as a float."""
    return isinstance(value, int | float) and abs(value) <= sys.float_info.max


def _parse_steps(encoded_lines: Iterable[bytes], path: Path) -> Iterator[dict[str, float]]:
    for number, line in enumerate(encoded_lines, start=1):
        if not line.endswith(b"\n"):
            return
        try:
            facts = texts.parse_json(line.decode(), f"{path}:{number}")
        except UnicodeDecodeError:
            raise DataError(f"{path}:{number}: not UTF-8 text; expected the metrics of a training step") from None
        if not isinstance(facts, dict) or not isinstance(step := facts.get("step"), int) or not _is_finite(step):
            raise DataError(f"{path}:{number}: expected the metrics of a training step, an object with a `step`")
        yield facts
