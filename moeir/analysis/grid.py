"""A table of the means of one measure: rows are what was trained, columns what it was tested on, or the values of a setting."""

import math
from collections.abc import Mapping, Sequence

from moeir.analysis.result import AnalysisResult, Plot
from moeir.errors import UsageError


def parse_cells(names: Sequence[str]) -> list[tuple[str, str]]:
    """Row and column of each cell called ROW/COLUMN; UsageError for one that stands twice.

    >>> parse_cells(["bm25/dl19", "dpr/dl19"])
    [('bm25', 'dl19'), ('dpr', 'dl19')]
    """
    cells = []
    for name in names:
        row, _, column = name.partition("/")
        if not row or not column:
            raise UsageError(f"--run {name}=…: expected ROW/COLUMN=PATH")
        if (row, column) in cells:
            raise UsageError(f"--run {name}=…: the cell is given twice")
        cells.append((row, column))
    return cells


def parse_numbers(columns: Sequence[str]) -> dict[str, float]:
    """The number that each column is called; UsageError for a name that is none.

    >>> parse_numbers(["0.5", "2"])
    {'0.5': 0.5, '2': 2.0}
    """
    numbers = {}
    for column in columns:
        try:
            numbers[column] = float(column)
        except ValueError:
            numbers[column] = math.nan
        if not math.isfinite(numbers[column]):
            raise UsageError(f"--plot lines: expected numbers as columns, found {column!r}; --plot heatmap and bars take any name")
        if equal := next((other for other in numbers if other != column and numbers[other] == numbers[column]), None):
            raise UsageError(f"--plot lines: the columns {equal!r} and {column!r} are the same number; give them one name")
    return numbers


def analyze_grid(means: Mapping[tuple[str, str], float], measure: str, plot: str) -> AnalysisResult:
    """A row of means per first part of the cells' names (row, column), None where there is no run; `plot` is heatmap, lines or bars."""
    row_names, columns = (list(dict.fromkeys(cell[part] for cell in means)) for part in (0, 1))
    rows = [[row, *(means.get((row, column)) for column in columns)] for row in row_names]
    if plot == "lines":
        numbers = parse_numbers(columns)
        points = sorted((numbers[column], row_names.index(row), value) for (row, column), value in means.items())
        picture = Plot("lines", [(measure, row_names[number], x, value) for x, number, value in points])
    else:
        marks = [(measure, row, column, means.get((row, column), math.nan)) for row in row_names for column in columns]
        picture = Plot(plot, marks)
    return AnalysisResult(["row", *columns], rows, picture, table_header=[measure, *columns])
