"""One measure of many runs as a table or a figure: rows are what was trained, columns what it was tested on, or the values of a setting.

    python examples/grid.py --run bm25/nq=bm25.nq.trec --run came/nq=came.nq.trec --run came/trivia=came.trivia.trec \
           --qrels nq=nq.qrels --qrels trivia=trivia.qrels --measure RR@10 [--output FILE --plot bars]

prints the table, or writes FILE: .tsv, or a figure as .svg or .png. A --qrels without COLUMN= is for all other columns, - a missing cell.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from moeir.errors import MoeirError, UsageError
from moeir.evaluation import measures, tables
from moeir.records import lines, qrels, runs


def parse_cell(value: str) -> tuple[str, str, Path]:
    """Row, column and path of ROW/COLUMN=PATH."""
    name, _, path = value.partition("=")
    row, _, column = name.partition("/")
    if not (row and column and path):
        raise UsageError(f"--run {value}: expected ROW/COLUMN=PATH")
    return row, column, Path(path)


def parse_judgements(value: str) -> tuple[str | None, Path]:
    """Column and path of COLUMN=PATH, or None and the path if no column is named."""
    column, equals, path = value.partition("=")
    return (column, Path(path)) if equals and not Path(value).exists() else (None, Path(value))


def evaluate_cells(run_flags: Sequence[str], qrels_flags: Sequence[str], measure: str) -> dict[tuple[str, str], float]:
    """The mean of the measure by row and column."""
    parsed = measures.parse_measure(measure)
    grades = {column: qrels.read_qrels(path) for column, path in map(parse_judgements, qrels_flags)}
    means = dict[tuple[str, str], float]()
    for row, column, path in map(parse_cell, run_flags):
        if (row, column) in means:
            raise UsageError(f"--run {row}/{column}=…: the cell is given twice")
        if (judged := grades.get(column, grades.get(None))) is None:
            raise UsageError(f"--run {row}/{column}=…: needs --qrels {column}=PATH, the judgements of this column")
        values = measures.evaluate_run(runs.read_run(path), judged, [parsed])
        means[row, column] = measures.aggregate_values(values)[str(parsed)]
    return means


def check_columns(means: Mapping[tuple[str, str], float]) -> None:
    """UsageError for columns that are no numbers, over which no line can be drawn."""
    columns = list(dict.fromkeys(column for _, column in means))
    try:
        numbers = set(map(float, columns))
    except ValueError:
        raise UsageError(f"--plot lines: expected numbers as columns, found {', '.join(columns)}") from None
    if len(numbers) < len(columns):
        raise UsageError(f"--plot lines: two columns are the same number: {', '.join(columns)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", action="append", required=True, metavar="ROW/COLUMN=PATH", help="the run of a cell; repeat the flag")
    parser.add_argument("--qrels", action="append", required=True, metavar="[COLUMN=]PATH", help="judgements of a column, or of all")
    parser.add_argument("--measure", default="nDCG@10", help="the measure of the table [default: nDCG@10]")
    parser.add_argument("--plot", default="heatmap", choices=("heatmap", "lines", "bars"), help="the kind of figure")
    parser.add_argument("--output", type=Path, help="file to write: .tsv, .svg or .png")
    arguments = parser.parse_args()
    means = evaluate_cells(arguments.run, arguments.qrels, arguments.measure)
    columns = list(dict.fromkeys(column for _, column in means))
    rows = [[row, *(means.get((row, column)) for column in columns)] for row in dict.fromkeys(row for row, _ in means)]
    if arguments.output is None:
        sys.stdout.write(tables.format_table([arguments.measure, *columns], rows) + "\n")
        return
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    if arguments.output.suffix == ".tsv":
        lines.write_lines(tables.format_lines(["row", *columns], rows, "tsv"), arguments.output)
        return
    if arguments.plot == "lines":
        check_columns(means)
    import figures

    figures.draw_panels(arguments.plot, {arguments.measure: means}, arguments.output)


if __name__ == "__main__":
    try:
        main()
    except MoeirError as problem:
        sys.exit(f"error: {problem}")
