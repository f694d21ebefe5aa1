"""Curves of trainings: which metrics share a plot, and text tables of trainings side by side: progress, curves, alarms."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from moeir import console
from moeir.analysis import training_monitor
from moeir.analysis.competition import FOR_ADVICE, GAINS, advise
from moeir.analysis.training_monitor import WINDOW, TrainingMonitor
from moeir.artifacts import atomic_write
from moeir.artifacts.unfinished import describe_unfinished
from moeir.errors import UsageError
from moeir.evaluation import tables

Curves = dict[str, tuple[str, float]]  # by label: the metric, and its divisor
CURVE_TITLES = {  # by the first part of a metric's name
    "share": "share",
    "wins": "largest share, of queries",
    "loss": "loss",
    "accuracy": "accuracy",
    "entropy": "entropy, of the most",
    "usage": "usage, of an equal part",
    "role_information": "role information, bits",
    "dev": "development",
}
SPARKLINE_WIDTH = 24  # characters of a sparkline
OVERVIEW_COLUMNS = ("training", "steps", "loss", "course", "tokens/s", "time", "best")


def group_curves(watch: TrainingMonitor) -> dict[str, Curves]:
    """The curves of a training by the title of their plot. Entropies are relative to their maximum, usage to uniform usage of a router."""
    charts: dict[str, Curves] = {}
    for kind, title in CURVE_TITLES.items():
        for fact in watch.histories:
            prefix, _, label = fact.partition(".")
            if prefix == kind:
                charts.setdefault(title, {})[label or "all"] = (fact, _find_divisor(watch, kind, label))
    return charts


def _find_divisor(watch: TrainingMonitor, kind: str, label: str) -> float:
    if kind == "usage":
        return 1 / len(watch.routers[label.rpartition(".")[0]])
    if kind == "entropy":
        shares = sum(name.startswith("share.") for name in watch.histories)
        return math.log(max(2, shares if label == "shares" else len(watch.routers.get(label, ()))))
    return 1.0


@dataclass(frozen=True)
class TrainingRun:
    """A training by name, its monitor, and whether it has finished; if not, how it stands and how to finish it."""

    name: str
    monitor: TrainingMonitor
    finished: bool
    note: str | None = None


def load_trainings(paths: Sequence[Path]) -> list[TrainingRun]:
    """Load trainings, named by their folders, or by their paths if folder names repeat."""
    names = [path.name if path.name not in ("", "..", training_monitor.METRICS_FILE) else str(path) for path in paths]
    names = names if len(set(names)) == len(names) else [str(path) for path in paths]
    if len(set(names)) < len(names):
        raise UsageError("--training: the same training is given twice")
    files = [training_monitor.find_metrics(path) for path in paths]
    monitors = (training_monitor.replay(training_monitor.read_metrics(file)) for file in files)
    finished = (atomic_write.final_path(file.parent) == file.parent for file in files)
    notes = (describe_unfinished(file.parent) for file in files)
    return list(map(TrainingRun, names, monitors, finished, notes))


def format_trainings(trainings: Sequence[TrainingRun]) -> str:
    """Tables of all trainings, of their curves side by side, and their alarms."""
    overview = tables.format_table(OVERVIEW_COLUMNS, [_make_overview_row(training) for training in trainings])
    rows = list(_curve_table(trainings))
    parts = [overview, *([tables.format_table(("curve", "of", "training", "mean", "course"), rows, ".3f")] if rows else [])]
    parts.append("\n".join(_list_alarms(trainings)))
    parts.append("\n".join(f"{training.name}: {training.note}" for training in trainings if training.note and not training.finished))
    parts.append("\n".join(f"{one.name}: {describe_gains(one.monitor)}" for one in trainings if "competing" in one.monitor.latest))
    note = f"Numbers are means of the last {WINDOW} steps, or of all if fewer."
    return "\n\n".join([*filter(None, parts), note])


def _make_overview_row(training: TrainingRun) -> list[object]:
    watch = training.monitor
    loss = [watch["loss"].mean, _draw_sparkline(watch, "loss", 1.0)] if "loss" in watch else [None, None]
    rate = watch.tokens_per_second
    speed = [None, None] if rate is None else [f"{rate:,.0f}", console.format_seconds(watch["seconds"].overall_sum)]
    best = next((f"{name} {best:.4f} after step {step:,}" for name, (best, step) in watch.best.items()), None)
    return [training.name, f"{watch.step:,}{'' if training.finished else ' unfinished'}", *loss, *speed, best]


def _curve_table(trainings: Sequence[TrainingRun]) -> Iterator[list[object]]:
    """A row for each curve and training: the mean of the last steps and the course."""
    charts = [(training, group_curves(training.monitor)) for training in trainings]
    for title in CURVE_TITLES.values():
        curves = [(training, own.get(title, {})) for training, own in charts]
        for label in dict.fromkeys(label for _, own in curves for label in own):
            for training, own in curves:
                if label in own:
                    fact, unit = own[label]
                    mean = training.monitor[fact].mean / unit
                    yield [title, label, training.name, mean, _draw_sparkline(training.monitor, fact, unit)]


def _draw_sparkline(watch: TrainingMonitor, fact: str, unit: float) -> str:
    return console.sparkline([value / unit for _, value in watch[fact].points()], SPARKLINE_WIDTH)


def describe_gains(watch: TrainingMonitor) -> str:
    """Whether to compete, by what experts gained where they lost while they learned alike, if a training measured it; else why not."""
    if not any(name.startswith(f"{GAINS}.") for name in watch.latest):
        why = "two evaluations of --dev-queries before it begins, and queries that an expert loses"
        return f"whether to compete is not known: it needs {why}; moeir analyze competition compares runs"
    measure = next(name.split(".", 2)[2] for name in watch.latest if name.startswith(f"{GAINS}."))
    return advise(measure, *(watch.latest[f"{GAINS}.{name}.{measure}"] for name in FOR_ADVICE))


def curve_rows(trainings: Sequence[TrainingRun]) -> Iterator[list[object]]:
    """Rows (training, metric, step, mean) for files: means over at most 128 intervals, each with its last step."""
    for training in trainings:
        for fact, course in training.monitor.histories.items():
            yield from ([training.name, fact, step, mean] for step, mean in course.points())


CURVE_COLUMNS = ("training", "fact", "step", "mean")


def _list_alarms(trainings: Sequence[TrainingRun]) -> list[str]:
    lines = [(f"{one.name}: " if len(trainings) > 1 else "") + str(alarm) for one in trainings for alarm in one.monitor.alarms]
    return lines or ["No alarm."]
