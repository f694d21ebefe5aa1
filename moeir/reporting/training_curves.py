"""Curves of trainings: which metrics share a plot, and text tables of trainings side by side: progress, losses, shares, usage, alarms."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from moeir import console
from moeir.analysis import training_monitor
from moeir.analysis.training_monitor import WINDOW, TrainingMonitor
from moeir.artifacts import atomic_write
from moeir.artifacts.unfinished import describe_unfinished
from moeir.errors import UsageError
from moeir.evaluation import tables

Curves = dict[str, tuple[str, float]]  # by label: the metric, and its divisor


def _expert_curves(kind: str) -> Callable[[TrainingMonitor], Curves]:
    return lambda watch: {expert: (f"{kind}.{expert}", 1.0) for expert in watch.experts if f"{kind}.{expert}" in watch}


def _loss_curves(watch: TrainingMonitor) -> Curves:
    return _expert_curves("loss")(watch) | ({"all": ("loss", 1.0)} if "loss" in watch else {})


def _entropy_curves(watch: TrainingMonitor) -> Curves:
    """Entropies relative to their maximum: 1 for a uniform distribution."""
    shares = {"shares": ("entropy.shares", _max_share_entropy(watch))} if "entropy.shares" in watch else {}
    return shares | {
        router: (f"entropy.{router}", math.log(max(2, len(names))))
        for router, names in watch.routers.items()
        if f"entropy.{router}" in watch
    }


def _max_share_entropy(watch: TrainingMonitor) -> float:
    return math.log(max(2, sum(f"share.{expert}" in watch for expert in watch.experts)))


def _usage_curves(watch: TrainingMonitor) -> Curves:
    """Usage relative to uniform usage of a router: 1 if uniform."""
    return {f"{router} {fact.rpartition('.')[2]}": (fact, 1 / len(names)) for router, names in watch.routers.items() for fact in names}


def _role_curves(watch: TrainingMonitor) -> Curves:
    """Bits by which a router's expert tells a query from a document."""
    return {router: (fact, 1.0) for router in watch.routers if (fact := f"role_information.{router}") in watch}


def _dev_curves(watch: TrainingMonitor) -> Curves:
    return {name.removeprefix("dev."): (name, 1.0) for name in watch.best}


CURVE_KINDS: dict[str, Callable[[TrainingMonitor], Curves]] = {
    "share": _expert_curves("share"),
    "largest share, of queries": _expert_curves("wins"),
    "loss": _loss_curves,
    "accuracy": _expert_curves("accuracy"),
    "entropy, of the most": _entropy_curves,
    "usage, of an equal part": _usage_curves,
    "role information, bits": _role_curves,
    "development": _dev_curves,
}

SPARKLINE_WIDTH = 24  # characters of a sparkline
Cells = dict[str, object]  # of a row, by the name of their column


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
    """Format the tables and alarms of all trainings."""
    hidden = () if len(trainings) > 1 else ("training",)
    parts = [_table_of_cells(_overview_rows(trainings))]
    parts += [_table_of_cells(rows, hidden) for rows in (_expert_rows(trainings), _router_rows(trainings))]
    parts.append("\n".join(_alarm_lines(trainings)))
    parts.append("\n".join(f"{training.name}: {training.note}" for training in trainings if training.note and not training.finished))
    note = f"Numbers are means of the last {WINDOW} steps, or of all if fewer."
    return "\n\n".join([*filter(None, parts), note])


def curve_rows(trainings: Sequence[TrainingRun]) -> Iterator[list[object]]:
    """Rows (training, metric, step, mean) for files: means over at most 128 intervals, each with its last step."""
    for training in trainings:
        for fact, course in training.monitor.histories.items():
            yield from ([training.name, fact, step, mean] for step, mean in course.points())


CURVE_COLUMNS = ("training", "fact", "step", "mean")


def _table_of_cells(rows: list[Cells], hidden: Sequence[str] = ()) -> str:
    """Text table of rows of named cells; a missing cell is a dash, an empty column is left out."""
    names = dict.fromkeys(name for row in rows for name in row)
    header = [name for name in names if name not in hidden and any(row.get(name, "") != "" for row in rows)]
    return tables.format_table(header, [[row.get(name, "-") for name in header] for row in rows]) if rows else ""


def _overview_rows(trainings: Sequence[TrainingRun]) -> list[Cells]:
    table_rows = []
    for training in trainings:
        watch = training.monitor
        row: Cells = {"training": training.name, "steps": f"{watch.step:,}", "": "" if training.finished else "unfinished"}
        row |= _history_cells(watch, "loss", "loss")
        if (rate := watch.tokens_per_second) is not None:
            row |= {"tokens/s": f"{rate:,.0f}", "time": console.format_seconds(watch["seconds"].overall_sum)}
        for name, (best, step) in itertools.islice(watch.best.items(), 1):
            row |= {name: f"{watch.latest[name]:.4f}", "best": f"{best:.4f}", "after step": f"{step:,}"}
        table_rows.append(row)
    return table_rows


def _expert_rows(trainings: Sequence[TrainingRun]) -> list[Cells]:
    """One row per expert and training, sorted by expert; then one for the entropy of the shares of each training."""
    table_rows = []
    for expert in dict.fromkeys(expert for training in trainings for expert in training.monitor.experts):
        for training in (training for training in trainings if expert in training.monitor.experts):
            watch = training.monitor
            row: Cells = {"expert": expert, "training": training.name} | _history_cells(watch, f"share.{expert}", "share", 1.0)
            if f"wins.{expert}" in watch:
                row |= {"largest": f"{watch[f'wins.{expert}'].mean:.1%}"}
            row |= {name: f"{watch[f'{name}.{expert}'].mean:.3f}" for name in ("rank", "accuracy") if f"{name}.{expert}" in watch}
            table_rows.append(row | _history_cells(watch, f"loss.{expert}", "loss"))
    for training in (training for training in trainings if "entropy.shares" in training.monitor):
        cells = _history_cells(training.monitor, "entropy.shares", "share", _max_share_entropy(training.monitor))
        table_rows.append({"expert": "entropy of shares", "training": training.name} | cells)
    return table_rows


def _router_rows(trainings: Sequence[TrainingRun]) -> list[Cells]:
    """One row per router and training: entropy, and a bar for the usage of each expert, half as high if usage is uniform."""
    table_rows = []
    for router in dict.fromkeys(router for training in trainings for router in training.monitor.routers):
        for training in (training for training in trainings if router in training.monitor.routers):
            shares = [training.monitor[fact].mean for fact in training.monitor.routers[router]]
            row: Cells = {"router": router, "training": training.name}
            row |= _history_cells(training.monitor, f"entropy.{router}", "entropy", math.log(max(2, len(shares))))
            row |= _history_cells(training.monitor, f"role_information.{router}", "bits of role", 1.0)
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


def _history_cells(watch: TrainingMonitor, fact: str, name: str, high: float | None = None) -> Cells:
    """Mean, and sparkline of the history, on a scale from 0 to `high` if given; empty for a missing metric."""
    if fact not in watch:
        return {}
    line = console.sparkline([value for _, value in watch[fact].points()], SPARKLINE_WIDTH, None if high is None else 0.0, high)
    return {name: f"{watch[fact].mean:.3f}", f"{name} in its course": line}
