"""The result of an analysis: rows for files and tables, and a plot of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Mark = tuple[Any, ...]


@dataclass(frozen=True)
class Plot:
    """Marks of one `kind`; each starts with its panel and its label, which selects the colour; `x_label` and `y_label` name the axes.

    bars (panel, label, group, height) · lines (panel, label, step, value) · points (panel, label, x, y) or with z ·
    heatmap (panel, row, column, value or nan)
    """

    kind: str
    marks: Sequence[Mark]
    x_label: str = ""
    y_label: str = ""


@dataclass(frozen=True)
class AnalysisResult:
    """`columns` and rows; their plot, if there is one; the header of a text table if it differs from `columns`; sentences about the
    whole."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    plot: Plot | None = None
    table_header: Sequence[str] = ()
    notes: Sequence[str] = ()
