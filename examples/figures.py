"""Bars, curves and heat maps of tables, and what the figures of these programs share; the same input gives the same bytes."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

Cells = Mapping[tuple[str, str], float]  # by row and column
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")  # Okabe and Ito: safe for colour blindness
STYLE: Any = {"svg.hashsalt": "moeir", "svg.fonttype": "none", "text.parse_math": False}  # reproducible bytes; $ does not start a formula
KINDS = ("heatmap", "lines", "bars")


def draw_panels(kind: str, panels: Mapping[str, Cells], file: Path, y_label: str = "") -> None:
    """Draw one figure with a panel for each title: a heat map of its cells, bars, or a line for each row over columns that are numbers."""
    draw = {"heatmap": draw_heatmap, "lines": draw_lines, "bars": draw_bars}[kind]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5 * len(panels), 3.5), layout="constrained")
        for axes, (title, cells) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
            rows, columns = (list(dict.fromkeys(cell[part] for cell in cells)) for part in (0, 1))
            draw(axes, cells, rows, columns)
            axes.set_title(title, fontsize="medium")
            axes.set_ylabel(y_label)
        save_figure(figure, file)


def save_figure(figure: Figure, file: Path) -> None:
    """Write a figure as SVG or PNG, by the name of the file."""
    metadata = {"Date": None} if file.suffix == ".svg" else {"Software": "moeir"}
    figure.savefig(file, format=file.suffix.removeprefix("."), dpi=120, metadata=metadata)


def draw_bars(axes: Any, cells: Cells, rows: list[str], columns: list[str]) -> None:
    width = 0.8 / len(rows)
    for number, row in enumerate(rows):
        positions = np.arange(len(columns)) + (number - (len(rows) - 1) / 2) * width
        heights = [cells.get((row, column), math.nan) for column in columns]
        axes.bar(positions, heights, width * 0.92, color=COLOURS[number % len(COLOURS)], label=row)
    axes.set_xticks(range(len(columns)), columns, rotation=30, ha="right", fontsize="small")
    axes.legend(fontsize="small", frameon=False)


def draw_lines(axes: Any, cells: Cells, rows: list[str], columns: list[str]) -> None:
    numbers = sorted(columns, key=float)
    for number, row in enumerate(rows):
        points = [(float(column), cells[row, column]) for column in numbers if (row, column) in cells]
        axes.plot(*zip(*points, strict=True), color=COLOURS[number % len(COLOURS)], marker="o", markersize=4, label=row)
    axes.grid(alpha=0.25)
    axes.legend(fontsize="small", frameon=False)


def draw_heatmap(axes: Any, cells: Cells, rows: list[str], columns: list[str]) -> None:
    values = np.array([[cells.get((row, column), math.nan) for column in columns] for row in rows])
    spread = float(np.ptp(values[~np.isnan(values)])) or 1.0
    axes.imshow(values, cmap="Blues", vmin=np.nanmin(values) - 0.1 * spread, vmax=np.nanmin(values) + 2 * spread, aspect="auto")
    axes.set_xticks(range(len(columns)), columns, rotation=30, ha="right", fontsize="small")
    axes.set_yticks(range(len(rows)), rows, fontsize="small")
    for (row, column), value in np.ndenumerate(values):
        axes.text(column, row, "-" if math.isnan(value) else f"{value:.3f}", ha="center", va="center", fontsize="small")
