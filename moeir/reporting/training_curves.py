"""Curves of trainings: which metrics share a plot, and text tables of trainings side by side: progress, losses, shares, usage, alarms."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from moeir import console
from moeir.analysis import training_monitor
from moeir.analysis.training_monitor import WINDOW, TrainingMonitor
from moeir.artifacts import atomic_write
from moeir.errors import UsageError
from moeir.evaluation import tables

Curves = dict[str, tuple[str, float]]  # by label: the metric, and its divisor


def _expert_curves(kind: str) -> Callable[[TrainingMonitor], Curves]:
    return lambda watch: {expert: (f"{kind}.{expert}", 1.0) for expert in watch.experts if f"{kind}.{expert}" in watch}


def _loss_curves(watch: TrainingMonitor) -> Curves:
    return _expert_curves("loss")(watch) | ({"all": ("loss", 1.0)} if "loss" in watch else {})


def _entropy_curves(watch: TrainingMonitor) -> Curves:
    """Entropies relative to their maximum: 1 for a uniform distribution."""
    experts = sum(f"share.{expert}" in watch for expert in watch.experts)
    shares = {"shares": ("entropy.shares", math.log(max(2, experts)))} if "entropy.shares" in watch else {}
    return shares | {
        router: (f"entropy.{router}", math.log(max(2, len(names))))
        for router, names in watch.routers.items()
        if f"entropy.{router}" in watch
    }


def _usage_curves(watch: TrainingMonitor) -> Curves:
    """Usage relative to uniform usage of a router: 1 if uniform."""
    return {f"{router} {fact.rpartition('.')[2]}": (fact, 1 / len(names)) for router, names in watch.routers.items() for fact in names}


def _dev_curves(watch: TrainingMonitor) -> Curves:
    return {name.removeprefix("dev."): (name, 1.0) for name in watch.best}


CURVE_KINDS: dict[str, Callable[[TrainingMonitor], Curves]] = {
    "share": _expert_curves("share"),
    "largest share, of queries": _expert_curves("wins"),
    "loss": _loss_curves,
    "accuracy": _expert_curves("accuracy"),
    "entropy, of the most": _entropy_curves,
    "usage, of an equal part": _usage_curves,
    "development": _dev_curves,
}

SPARKLINE_WIDTH = 24  # characters of a sparkline
CurveRow = list[object]


@dataclass(frozen=True)
class TrainingRun:
    """A training by name, its monitor, and whether it has finished."""

    name: str
    monitor: TrainingMonitor
    finished: bool


def load_trainings(paths: Sequence[Path]) -> list[TrainingRun]:
    """Load trainings, named by their folders, or by their paths if folder names repeat."""
    names = [path.name if path.name not in ("", "..", training_monitor.METRICS_FILE) else str(path) for path in paths]
    names = names if len(set(names)) == len(names) else [str(path) for path in paths]
    if len(set(names)) < len(names):
        raise UsageError("--training: the same training is given twice")
    trainings = []
    for name, path in zip(names, paths, strict=True):
        file = training_monitor.find_metrics(path)
        trainings.append(
            TrainingRun(
                name, training_monitor.replay(training_monitor.read_metrics(file)), atomic_write.final_path(file.parent) == file.parent
            )
        )
    return trainings


def format_trainings(trainings: Sequence[TrainingRun]) -> str:
    """Format the tables and alarms of all trainings."""
    parts = [
        _table_of_cells(_overview_rows(trainings)),
        _table_of_cells(_expert_rows(trainings)),
        _table_of_cells(_router_rows(trainings)),
        "\n".join(_alarm_lines(trainings)),
    ]
    note = f"Numbers are means of the last {WINDOW} steps, or of all if fewer; ↗ ↘ show the trend of the last tenth of those."
    return "\n\n".join([*filter(None, parts), note]) + "\n"


def curve_rows(trainings: Sequence[TrainingRun]) -> Iterator[CurveRow]:
    """Rows (training, metric, step, mean) for files: means over at most 128 intervals, each with its last step."""
    for training in trainings:
        for fact, course in training.monitor.histories.items():
            yield from ([training.name, fact, step, mean] for step, mean in course.points())


CURVE_COLUMNS = ("training", "fact", "step", "mean")


def _table_of_cells(named_cells: list[dict[str, object]]) -> str:
    """Text table of rows of named cells; a missing cell is a dash."""
    header = list(dict.fromkeys(name for row in named_cells for name in row))
    return tables.format_table(header, [[row.get(name, "-") for name in header] for row in named_cells]) if named_cells else ""


def _overview_rows(trainings: Sequence[TrainingRun]) -> list[dict[str, object]]:
    table_rows = []
    for training in trainings:
        watch = training.monitor
        row: dict[str, object] = {"training": training.name, "steps": f"{watch.step:,}", "": "" if training.finished else "unfinished"}
        row |= _history_cells(watch, "loss", "loss", SPARKLINE_WIDTH)
        if (rate := watch.tokens_per_second) is not None:
            row |= {"tokens/s": f"{rate:,.0f}", "time": console.format_seconds(watch["seconds"].overall_sum)}
        for name, (best, step) in watch.best.items():
            if name == next(iter(watch.best)):
                row |= {name: f"{watch.latest[name]:.4f}", "best": f"{best:.4f}", "after step": f"{step:,}"}
        table_rows.append(row)
    return table_rows if any(row[""] for row in table_rows) else [{name: cell for name, cell in row.items() if name} for row in table_rows]


def _expert_rows(trainings: Sequence[TrainingRun]) -> list[dict[str, object]]:
    """One row per expert and training, sorted by expert."""
    table_rows = []
    for expert in dict.fromkeys(expert for training in trainings for expert in training.monitor.experts):
        for training in (training for training in trainings if expert in training.monitor.experts):
            watch, row = training.monitor, dict[str, object]({"expert": expert})
            if len(trainings) > 1:
                row["training"] = training.name
            row |= _history_cells(watch, f"share.{expert}", "share", SPARKLINE_WIDTH, 0.0, 1.0)
            if f"wins.{expert}" in watch:
                row |= {"largest": f"{watch[f'wins.{expert}'].mean:.1%}"}
            for name in ("rank", "accuracy"):
                if f"{name}.{expert}" in watch:
                    row[name] = f"{watch[f'{name}.{expert}'].mean:.3f}"
            table_rows.append(row | _history_cells(watch, f"loss.{expert}", "loss", SPARKLINE_WIDTH))
    for training in (training for training in trainings if "entropy.shares" in training.monitor):
        count = sum(f"share.{expert}" in training.monitor for expert in training.monitor.experts)
        row = {"expert": "entropy of shares"}
        if len(trainings) > 1:
            row["training"] = training.name
        table_rows.append(row | _history_cells(training.monitor, "entropy.shares", "share", SPARKLINE_WIDTH, 0.0, math.log(max(2, count))))
    return table_rows


def _router_rows(trainings: Sequence[TrainingRun]) -> list[dict[str, object]]:
    """One row per router and training: entropy, and a bar for the usage of each expert, half as high if usage is uniform."""
    table_rows = []
    for router in dict.fromkeys(router for training in trainings for router in training.monitor.routers):
        for training in (training for training in trainings if router in training.monitor.routers):
            shares = [training.monitor[fact].mean for fact in training.monitor.routers[router]]
            row: dict[str, object] = {"router": router}
            if len(trainings) > 1:
                row["training"] = training.name
            row |= _history_cells(training.monitor, f"entropy.{router}", "entropy", SPARKLINE_WIDTH, 0.0, math.log(max(2, len(shares))))
            row["usage of experts"] = console.sparkline([share * len(shares) for share in shares], len(shares), 0.0, 2.0)
            table_rows.append(row | {"least": f"{min(shares):.1%}", "most": f"{max(shares):.1%}", "equal": f"{1 / len(shares):.1%}"})
    return table_rows


def _alarm_lines(trainings: Sequence[TrainingRun]) -> Iterator[str]:
    for training in trainings:
        for alarm in training.monitor.alarms:
            suffix = "" if alarm in training.monitor.active_alarms else " (has passed)"
            yield (f"{training.name}: " if len(trainings) > 1 else "") + f"{alarm}{suffix}"
    if not any(training.monitor.alarms for training in trainings):
        yield "No alarm."


def _history_cells(
    watch: TrainingMonitor, fact: str, name: str, width: int, low: float | None = None, high: float | None = None
) -> dict[str, object]:
    """Mean, and sparkline of the history with a trend arrow; empty for a missing metric."""
    if fact not in watch:
        return {}
    course = watch[fact]
    line = console.sparkline([value for _, value in course.points()], width, low, high)
    arrow = "" if course.trend is None else console.ARROWS[course.trend]
    return {name: f"{course.mean:.3f}", f"{name} in its course": f"{line} {arrow}".rstrip()}
