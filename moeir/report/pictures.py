"""Plots of trainings side by side, and of analysis results; the same input gives the same bytes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from moeir.analysis.watching import TrainingMonitor
from moeir.errors import DataError
from moeir.report.kinds import CURVE_KINDS, Curves
from moeir.report.training import TrainingRun

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")  # Okabe and Ito: safe for colour blindness
STYLE: Any = {"svg.hashsalt": "moeir", "svg.fonttype": "none", "text.parse_math": False}  # reproducible bytes; $ does not start a formula
MAX_CURVES_IN_LEGEND = 12  # most curves of a plot with a legend
TRAINING_WIDTH, CURVES_HEIGHT = 5.2, 2.4  # inches per training, and per plot


def plot_trainings(trainings: Sequence[TrainingRun], file: Path, form: str) -> None:
    """Plot a column for each training and a row for each kind of curve that one of them has."""
    kinds = [(title, curves_of) for title, curves_of in CURVE_KINDS.items() if any(curves_of(training.monitor) for training in trainings)]
    if not kinds:
        raise DataError(f"{trainings[0].name}: no step has a loss, share, usage or dev value to plot")
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(TRAINING_WIDTH * len(trainings), CURVES_HEIGHT * len(kinds) + 0.4), layout="constrained")
        axes = figure.subplots(len(kinds), len(trainings), squeeze=False, sharex="col", sharey="row")
        for column, training in zip(axes.T, trainings, strict=True):
            for axis, (title, curves_of) in zip(column, kinds, strict=True):
                _plot_curves(axis, training.monitor, curves_of(training.monitor))
                axis.set_ylabel(title if training is trainings[0] else "")
            column[0].set_title(training.name + ("" if training.finished else " (unfinished)"))
            column[-1].set_xlabel("step")
        figure.savefig(file, format=form, dpi=120, metadata={"Date": None} if form == "svg" else {"Software": "moeir"})


def _plot_curves(axis: Axes, watch: TrainingMonitor, curves: Curves) -> None:
    for number, (label, (fact, unit)) in enumerate(curves.items()):
        points = watch[fact].points()
        steps, values = [step for step, _ in points], [value / unit for _, value in points]
        marker = "o" if len(points) == 1 or fact.startswith("dev.") else None
        axis.plot(steps, values, color=COLOURS[number % len(COLOURS)], marker=marker, markersize=3, linewidth=1.2, label=label.lstrip("_"))
    for alarm in watch.alarms:
        axis.axvline(alarm.step, color="#c00000", linewidth=0.8, linestyle=":")
    axis.grid(alpha=0.25)
    if 0 < len(curves) <= MAX_CURVES_IN_LEGEND:
        axis.legend(fontsize="x-small", ncols=2)
