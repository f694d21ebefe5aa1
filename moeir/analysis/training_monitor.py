"""Monitor of a training: means, trends and histories of its metrics, and alarms when experts collapse, starve or do not compete, a loss
stalls, or a decoder does not use its vectors.

The state depends on the lines of `metrics.jsonl` only: a resumed training replays the lines on disk.
"""

import itertools
import math
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import mul
from pathlib import Path

from moeir.analysis.result import AnalysisResult, Plot
from moeir.artifacts import atomic_write
from moeir.errors import ArtifactError, DataError, UsageError
from moeir.records import texts

METRICS_FILE = "metrics.jsonl"
WINDOW, RECENT, MIN_STEPS, MAX_POINTS = 500, 50, 8, 128
LOSS_MEASURE = "loss"  # of a development set: the lowest is the best, `dev.loss`; of any other measure the highest
COLLAPSE_ABOVE, COLLAPSE_ENDS_BELOW = 0.95, 0.90  # share of queries in which one expert has the largest share
EQUALITY_ABOVE, EQUALITY_ENDS_BELOW = 0.95, 0.90  # mean entropy of the shares relative to its maximum
STARVATION_BELOW, STARVATION_ENDS_ABOVE = 0.01, 0.02  # usage of an expert relative to uniform usage of its router
UNIFORM_LOSS = "uniform_loss"  # metric: the contrastive loss of a model that gives all candidates of a query the same score
STALL_MIN, STALL_MAX, STALL_ENDS_BELOW = 0.95, 1.05, 0.90  # loss relative to that of equal scores
DECODER_RATE, BOTTLENECK_GAIN = "learning_rate.decoder", "bottleneck_gain"  # metrics: nats per token that a decoder owes to the vector
LEARNED_RATE_SUM = 0.1  # sum of a decoder's learning rates after which it uses vectors that say something
GAIN_BELOW, GAIN_ENDS_ABOVE, MIN_GAINS, RECENT_GAINS = 0.01, 0.02, 2, 3
COLLAPSE_ADVICE = "raise temperature or standardised of --objective competitive"
EQUALITY_ADVICE = "lower temperature of --objective competitive, or mine harder negatives"
STALL_ADVICE = "set a lower --temperature (or a larger scale in --arch), or another --learning-rate"
STARVATION_ADVICE = "raise load_balance of --objective"
BOTTLENECK_ADVICE = "raise the decoder's rate (--group-rate decoder=RATE), let it see less (window, decoder_rate) or lower mlm_weight"


class MetricHistory:
    """One metric over a training: the values of the last 500 steps, and at most 128 means over equal intervals."""

    def __init__(self) -> None:
        self.window: deque[float] = deque(maxlen=WINDOW)
        self.window_sum = self.overall_sum = self._point_sum = 0.0
        self._points: list[tuple[int, float]] = []
        self._steps_per_point, self._point_count, self._step = 1, 0, 0

    def add(self, step: int, value: float) -> None:
        if len(self.window) == WINDOW:
            self.window_sum -= self.window[0]
        self.window.append(value)
        self.window_sum += value
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
        return self.window_sum / len(self.window)

    @property
    def recent_mean(self) -> float:
        """Mean over the last 50 steps."""
        recent = list(self.window)[-RECENT:]
        return sum(recent) / len(recent)

    @property
    def trend(self) -> int | None:
        """1 if the mean of the last 50 steps exceeds that of the last 500 by two standard errors, -1 if below, else 0; None if too few.

        >>> history = MetricHistory(); [history.add(step, float(step > 90)) for step in range(100)][0]; history.trend
        1
        """
        if len(self.window) < MIN_STEPS:
            return None
        recent = min(RECENT, len(self.window) // 4)
        mean = sum(itertools.islice(self.window, len(self.window) - recent, None)) / recent
        spread = max(0.0, sum(map(mul, self.window, self.window)) / len(self.window) - self.mean**2)
        beyond = abs(mean - self.mean) > max(2 * math.sqrt(spread / recent), 1e-9)
        return int(beyond) if mean > self.mean else -int(beyond)

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
        self.experts: list[str] = []  # names with a loss or share: experts, sums of experts, losses of a pre-training
        self.routers: dict[str, list[str]] = {}  # usage metrics of each router, by expert
        self.best: dict[str, tuple[float, int]] = {}
        self.alarms: list[Alarm] = []
        self._active_alarms: dict[str, Alarm] = {}
        self._late_gains: dict[str, deque[float]] = {}  # of decoders that have learned for a while

    def update(self, facts: Mapping[str, float]) -> list[Alarm]:
        """Add the metrics of one step; return the alarms that start with it. An active alarm is not repeated."""
        self.step = int(facts["step"])
        for name, value in facts.items():
            if name == "step" or not _is_finite(value):
                continue
            if name not in self.histories:
                self._register(name)
            self.histories[name].add(self.step, value)
            self.latest[name] = value
            if name.startswith("dev.") and (name not in self.best or _is_better(name, value, self.best[name][0])):
                self.best[name] = (value, self.step)
        new_alarms = [*self._check_collapse(), *self._check_equality(), *self._check_starvation(), *self._check_stall()]
        new_alarms += self._check_bottleneck(facts)
        self.alarms += new_alarms
        return new_alarms

    def __getitem__(self, name: str) -> MetricHistory:
        return self.histories[name]

    def __contains__(self, name: str) -> bool:
        return name in self.histories

    @property
    def active_alarms(self) -> list[Alarm]:
        """Alarms whose cause persists."""
        return list(dict.fromkeys(self._active_alarms.values()))

    @property
    def tokens_per_second(self) -> float | None:
        """Throughput over the last 50 steps."""
        tokens, seconds = (sum(list(self[name].window)[-RECENT:]) if name in self else 0.0 for name in ("tokens", "seconds"))
        return tokens / seconds if seconds else None

    def _register(self, name: str) -> None:
        self.histories[name] = MetricHistory()
        kind, _, expert = name.partition(".")
        if kind in ("share", "loss") and expert and expert not in self.experts:
            self.experts.append(expert)
        if kind == "usage":
            self.routers.setdefault(expert.rpartition(".")[0], []).append(name)

    def _check_collapse(self) -> Iterator[Alarm]:
        """Alarm if one expert has the largest share of nearly all queries."""
        rivals = [name for name in self.histories if name.startswith("wins.")]
        for name in rivals if len(rivals) > 1 else ():
            history = self.histories[name]
            if len(history.window) < WINDOW:
                continue
            share = round(history.mean, 9)
            if share <= COLLAPSE_ENDS_BELOW:
                self._active_alarms.pop(name, None)
            elif share > COLLAPSE_ABOVE and name not in self._active_alarms:
                message = f"{name.removeprefix('wins.')} had the largest share of {share:.1%} of the queries of the last {WINDOW} steps"
                self._active_alarms[name] = Alarm(self.step, f"{message}, and the others learn little; {COLLAPSE_ADVICE}")
                yield self._active_alarms[name]

    def _check_equality(self) -> Iterator[Alarm]:
        """Alarm if the experts have nearly equal shares of each query although they compete."""
        name, experts = "entropy.shares", sum(metric.startswith("share.") for metric in self.histories)
        competing = self.histories.get("competing")
        if experts < 2 or name not in self or competing is None or len(competing.window) < RECENT or competing.recent_mean < 1:
            return
        relative = round(self.histories[name].recent_mean / math.log(experts), 9)
        if relative < EQUALITY_ENDS_BELOW:
            self._active_alarms.pop(name, None)
        elif relative > EQUALITY_ABOVE and name not in self._active_alarms:
            message = f"the entropy of the experts' shares is {relative:.1%} of its maximum over the last {RECENT} steps"
            self._active_alarms[name] = Alarm(self.step, f"{message}, so that they hardly compete; {EQUALITY_ADVICE}")
            yield self._active_alarms[name]

    def _check_starvation(self) -> Iterator[Alarm]:
        """Alarm if a router hardly selects an expert; experts of one router that start to starve together share one alarm."""
        for router, names in self.routers.items():
            starved = []
            for name in names:
                history = self.histories[name]
                relative_share = round(history.mean * len(names), 9)
                if relative_share >= STARVATION_ENDS_ABOVE:
                    self._active_alarms.pop(name, None)
                elif relative_share < STARVATION_BELOW and len(history.window) == WINDOW and name not in self._active_alarms:
                    starved.append(name)
            if starved:
                shares = ", ".join(f"{name.rpartition('.')[2]} ({self.histories[name].mean:.2%})" for name in starved)
                message = f"{router} hardly selects expert {shares} in the last {WINDOW} steps, where {1 / len(names):.1%} is uniform"
                alarm = Alarm(self.step, f"{message}; {STARVATION_ADVICE}")
                self._active_alarms |= dict.fromkeys(starved, alarm)
                yield alarm

    def _check_stall(self) -> Iterator[Alarm]:
        """Alarm if a contrastive loss stays where equal scores of all candidates would put it; while the learning rate still rises, only
        after 500 steps."""
        uniform = self.histories.get(UNIFORM_LOSS)
        if uniform is None or len(uniform.window) < RECENT or (len(uniform.window) < WINDOW and self._rate_rises()):
            return
        expected = uniform.recent_mean
        for name in [name for name in self.histories if name.startswith("loss.")]:
            loss = self.histories[name].recent_mean
            relative = round(loss / expected, 9) if expected > 0 else 0.0
            if relative < STALL_ENDS_BELOW:
                self._active_alarms.pop(name, None)
            elif STALL_MIN <= relative <= STALL_MAX and name not in self._active_alarms:
                message = f"{name} is {loss:.3f} over the last {RECENT} steps, and {expected:.3f} is the loss if all "
                message += f"{math.exp(expected):,.0f} candidates have the same score: the model learns nothing"
                self._active_alarms[name] = Alarm(self.step, f"{message}; {STALL_ADVICE}")
                yield self._active_alarms[name]

    def _check_bottleneck(self, facts: Mapping[str, float]) -> Iterator[Alarm]:
        """Alarm if decoders that have learned for a while predict as well from the vectors of other texts."""
        if DECODER_RATE not in self or self[DECODER_RATE].overall_sum <= LEARNED_RATE_SUM:
            return
        for name in bottleneck_gains(facts):
            self._late_gains.setdefault(name, deque(maxlen=RECENT_GAINS)).append(facts[name])
        means = {name: round(sum(gains) / len(gains), 9) for name, gains in self._late_gains.items() if len(gains) >= MIN_GAINS}
        for name in [name for name, mean in means.items() if mean >= GAIN_ENDS_ABOVE]:
            self._active_alarms.pop(name, None)
        if unused := [name for name, mean in means.items() if mean < GAIN_BELOW and name not in self._active_alarms]:
            gains_text = ", ".join(f"{means[name]:.3f} ({name.removeprefix(f'{BOTTLENECK_GAIN}.')})" for name in unused)
            message = f"the decoder hardly uses the texts' vectors: instead of another text's they save {gains_text} nats per token"
            alarm = Alarm(self.step, f"{message}; {BOTTLENECK_ADVICE}")
            self._active_alarms |= dict.fromkeys(unused, alarm)
            yield alarm

    def _rate_rises(self) -> bool:
        if (history := self.histories.get("learning_rate")) is None:
            return False
        return len(history.window) > 1 and history.window[-1] > history.window[-2]


def bottleneck_gains(facts: Mapping[str, float]) -> dict[str, float]:
    """What each decoder of a step owes to its vectors; without Condenser's head, which owes them little by design."""
    parts = {name: value for name, value in facts.items() if name.startswith(f"{BOTTLENECK_GAIN}.") and _is_finite(value)}
    return {name: value for name, value in parts.items() if not name.endswith(".head")}


def _is_better(name: str, value: float, best: float) -> bool:
    """Whether a value of a development metric is better than the best so far."""
    return value < best if name.rpartition(".")[2] == LOSS_MEASURE else value > best


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


EXPERT_METRICS = ("share", "wins", "rank", "loss", "usage", "entropy", "role_information")


def expert_means(steps: Iterable[Mapping[str, float]], total: int, rows: int) -> tuple[list[str], list[list[float | None]]]:
    """Means of every expert's metrics over `rows` intervals of a training of `total` steps; their lengths differ by at most one step.

    Columns are `step`, the last of an interval, and the metrics (`share.lexical`, …); a metric that an interval lacks is None.

    >>> expert_means([{"step": 1, "share.a": 0.5}, {"step": 2, "share.a": 1.0}, {"step": 3, "loss": 7.0}], total=3, rows=2)
    (['step', 'share.a'], [[2, 0.75], [3, None]])
    """
    rows = min(rows, total)
    last: list[float | None] = [None] * rows
    sums: dict[str, list[float]] = {}
    counts: dict[str, list[int]] = {}
    for number, facts in enumerate(steps):
        row = number * rows // total
        last[row] = facts["step"]
        for name, value in facts.items():
            kind, dot, _ = name.partition(".")
            if not dot or kind not in EXPERT_METRICS or not _is_finite(value):
                continue
            sums.setdefault(name, [0.0] * rows)[row] += value
            counts.setdefault(name, [0] * rows)[row] += 1
    names = sorted(sums, key=lambda name: EXPERT_METRICS.index(name.split(".")[0]))
    averages = {name: [total / count if count else None for total, count in zip(sums[name], counts[name], strict=True)] for name in names}
    return ["step", *names], [[step, *(averages[name][row] for name in names)] for row, step in enumerate(last)]


def analyze_shares(path: Path, rows: int) -> AnalysisResult:
    """Expert metrics over the course of the training that wrote `metrics.jsonl`."""
    names, means = expert_means(read_metrics(path), sum(1 for _ in read_metrics(path)), rows)
    if len(names) == 1:
        raise UsageError(f"{path}: has no metrics of single experts; expected share.…, usage.… or loss.…")
    marks = []
    for column, name in enumerate(names[1:], start=1):
        kind, _, expert = name.partition(".")
        marks += [(kind, expert, row[0], row[column]) for row in means if row[column] is not None]
    return AnalysisResult(names, means, Plot("lines", marks, x_label="step"))
