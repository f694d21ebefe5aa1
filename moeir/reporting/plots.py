"""Plots of trainings side by side, and of analysis results; the same input gives the same bytes."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from moeir.analysis.result import Mark, Plot
from moeir.errors import DataError
from moeir.reporting.training_curves import TrainingRun, group_curves

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")  # Okabe and Ito: safe for colour blindness
STYLE: Any = {"svg.hashsalt": "moeir", "svg.fonttype": "none", "text.parse_math": False}  # reproducible bytes; $ does not start a formula
MAX_COLUMNS = 3  # panels per row, at most
PANEL_WIDTH, PANEL_HEIGHT = 4.6, 3.0  # inches per panel
CELL_WIDTH, CELL_HEIGHT, LETTER_WIDTH = 0.62, 0.36, 0.085  # inches per cell of a heat map, and per letter of its labels
BAR_WIDTH = 0.16  # inches per bar, at least
MAX_LABELS_IN_LEGEND, LEGEND_COLUMNS = 14, 4
POINT_SIZE = 14  # square points of a dot
MAX_MARKERS = 12  # most points of a line with a marker at each
GREY_LABELS = ("tied", "other")  # labels that are not a run are grey


def plot_trainings(trainings: Sequence[TrainingRun], file: Path, form: str) -> None:
    """Plot the curves of all trainings: a panel for each training and kind of curve."""
    marks: list[Mark] = []
    for training in trainings:
        suffix = "" if training.finished else " (unfinished)"
        name = f"{training.name}{suffix}: " if len(trainings) > 1 or suffix else ""
        for title, curves in group_curves(training.monitor).items():
            for label, (fact, unit) in curves.items():
                marks += [(name + title, label, step, value / unit) for step, value in training.monitor[fact].points()]
    if not marks:
        raise DataError(f"{trainings[0].name}: no step has a loss, share, usage or dev value to plot")
    draw_plot(Plot("lines", marks, x_label="step"), file, form)


def draw_plot(picture: Plot, file: Path, form: str) -> None:
    """Draw one figure with a panel for each distinct first value of the marks."""
    panels = list(dict.fromkeys(str(mark[0]) for mark in picture.marks))
    if not panels:
        raise DataError("the result has nothing to plot")
    labels = list(dict.fromkeys(str(mark[1]) for mark in picture.marks))
    bold = [label for label in labels if label not in GREY_LABELS]
    colours = {label: COLOURS[number % len(COLOURS)] for number, label in enumerate(bold)} | dict.fromkeys(GREY_LABELS, "#9a9a9a")
    is_3d = picture.kind == "points" and len(picture.marks[0]) > 4
    columns = 2 if len(panels) == 4 or (picture.kind == "points" and len(panels) % 2 == 0) else min(MAX_COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    with matplotlib.rc_context(STYLE):
        width, height = _panel_size(picture, panels)
        figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
        all_axes = figure.subplots(rows, columns, squeeze=False, subplot_kw={"projection": "3d"} if is_3d else {}).ravel().tolist()
        for axes, panel in zip(all_axes, panels, strict=False):
            DRAWERS[picture.kind](axes, [mark[1:] for mark in picture.marks if str(mark[0]) == panel], colours)
            axes.set_title(panel, fontsize="medium")
            axes.set_xlabel(picture.x_label)
            axes.set_ylabel(picture.y_label)
        for axes in all_axes[len(panels) :]:
            axes.set_axis_off()
        _add_legend(figure, all_axes)
        figure.savefig(file, format=form, dpi=120, metadata={"Date": None} if form == "svg" else {"Software": "moeir"})


def _panel_size(picture: Plot, panels: Sequence[str]) -> tuple[float, float]:
    """Inches of one panel, wide enough for what is in it."""
    if picture.kind == "points":
        return (2 * PANEL_WIDTH, 2 * PANEL_HEIGHT) if len(panels) == 1 else (1.2 * PANEL_WIDTH, 1.6 * PANEL_HEIGHT)
    if picture.kind == "heatmap":
        names = [list(dict.fromkeys(str(mark[position]) for mark in picture.marks)) for position in (1, 2)]
        margins = [LETTER_WIDTH * max(map(len, part)) + 0.5 for part in names]
        return max(2.6, margins[0] + CELL_WIDTH * len(names[1])), margins[1] + CELL_HEIGHT * len(names[0])
    bars = len(picture.marks) / len(panels) if picture.kind == "bars" else 0
    return max(PANEL_WIDTH, 0.8 + BAR_WIDTH * bars), PANEL_HEIGHT


def _add_legend(figure: Figure, all_axes: Sequence[Any]) -> None:
    """One legend of all panels, below them, if there are several labels and not too many."""
    handles = {label: handle for axes in all_axes for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    if 1 < len(handles) <= MAX_LABELS_IN_LEGEND:
        columns = min(LEGEND_COLUMNS, len(handles))
        figure.legend(handles.values(), handles, loc="outside lower center", ncols=columns, fontsize="small", frameon=False)


def _group_by_label(marks: Sequence[Mark]) -> dict[str, list[Mark]]:
    """The rest of each mark, by its label, the first column."""
    return {label: [mark[1:] for mark in marks if str(mark[0]) == label] for label in dict.fromkeys(str(mark[0]) for mark in marks)}


def _draw_bars(axes: Axes, marks: Sequence[Mark], colours: dict[str, str]) -> None:
    """Draw groups of bars, one bar per label."""
    groups, marks_by_label = list(dict.fromkeys(str(mark[1]) for mark in marks)), _group_by_label(marks)
    width = 0.8 / len(marks_by_label)
    for number, (label, bars) in enumerate(marks_by_label.items()):
        shift = (number - (len(marks_by_label) - 1) / 2) * width
        positions, heights = [groups.index(str(group)) + shift for group, _ in bars], [height for _, height in bars]
        axes.bar(positions, heights, width * 0.92, color=colours[label], label=label)
    slant = sum(map(len, groups)) > 36
    axes.set_xticks(range(len(groups)), groups, rotation=30 if slant else 0, ha="right" if slant else "center")
    axes.tick_params(labelsize="small")
    axes.grid(axis="y", alpha=0.25)
    axes.set_axisbelow(True)


def _draw_lines(axes: Axes, marks: Sequence[Mark], colours: dict[str, str]) -> None:
    marks_by_label = _group_by_label(marks)
    for label, points in marks_by_label.items():
        steps, values = zip(*points, strict=True)
        marker = "o" if len(points) <= MAX_MARKERS else None
        axes.plot(steps, values, color=colours[label], marker=marker, markersize=4, linewidth=1.3, label=label)
    axes.grid(alpha=0.25)


def _draw_points(axes: Any, marks: Sequence[Mark], colours: dict[str, str]) -> None:
    depth = {"depthshade": False} if axes.name == "3d" else {}
    for label, points in _group_by_label(marks).items():
        axes.scatter(*zip(*points, strict=True), s=POINT_SIZE, alpha=0.65, linewidths=0, color=colours[label], label=label, **depth)
    for axis in "xyz"[: 3 if depth else 2]:
        getattr(axes, f"set_{axis}ticks")([])


def _draw_heatmap(axes: Axes, marks: Sequence[Mark], colours: dict[str, str]) -> None:
    """Draw a table of numbers whose cells are the darker the higher they are; nan is an empty cell."""
    rows, columns = (list(dict.fromkeys(str(mark[position]) for mark in marks)) for position in (0, 1))
    values = {(str(row), str(column)): value for row, column, value in marks}
    cells = [[values[row, column] for column in columns] for row in rows]
    numbers = [value for value in values.values() if not math.isnan(value)]
    lowest, spread = min(numbers), max(numbers) - min(numbers) or 1.0
    axes.imshow(cells, cmap="Blues", vmin=lowest - 0.1 * spread, vmax=lowest + 2 * spread, aspect="auto")  # light: numbers are read on it
    slant = max(map(len, columns)) > 7
    axes.set_xticks(range(len(columns)), columns, rotation=30 if slant else 0, ha="right" if slant else "center", fontsize="small")
    axes.set_yticks(range(len(rows)), rows, fontsize="small")
    for row, line in enumerate(cells):
        for column, value in enumerate(line):
            axes.text(column, row, "-" if math.isnan(value) else f"{value:.3f}", ha="center", va="center", fontsize="small")


DRAWERS: dict[str, Callable[[Any, Sequence[Mark], dict[str, str]], None]] = {
    "bars": _draw_bars,
    "lines": _draw_lines,
    "points": _draw_points,
    "heatmap": _draw_heatmap,
}
