"""Tables in files of results, and the cell that a reference names: the table by its heading, the line above it or its first column's name,
the row by its first cell, or by its first two, the column by its name."""

import re
from os.path import relpath
from pathlib import Path
from typing import NamedTuple

from moeir.errors import DataError

ROOT = Path(__file__).parents[2]
RULE = re.compile(r"-{2,}( +-{2,})+ *|\|[\s:|-]*-[\s:|-]*")


class Table(NamedTuple):
    """A table of results; its names are the heading that it stands under, the line above it, and its first column's."""

    names: tuple[str, str, str]
    header: list[str]
    rows: list[list[str]]


def parse_tables(text: str) -> list[Table]:
    """Tables of Markdown, and those in fences, whose columns a line of dashes marks."""
    lines = text.replace("**", "").replace("```", "~~~").replace("`", "").splitlines()
    rules = {number for number, line in enumerate(lines) if number and RULE.fullmatch(line)}
    tables, heading, fenced = list[Table](), "", False
    for number, line in enumerate(lines):
        fenced ^= line.startswith("~~~")
        heading = line.strip("# ") if line.startswith("#") and not fenced else heading
        if number not in rules:
            continue
        end = number + 1
        while end < len(lines) and lines[end].strip("~ ") and not {end + 1, end + 2} & rules:  # the next table's caption ends this one
            end += 1
        starts = [] if "|" in line else [dashes.start() for dashes in re.finditer("-+", line)]
        header, *rows = [split_row(row, starts) for row in (lines[number - 1], *lines[number + 1 : end])]
        tables.append(Table((heading, lines[max(number - 2, 0)].strip("=: "), header[0]), header, rows))
    return tables


def split_row(line: str, starts: list[int]) -> list[str]:
    """Cells between bars, or from one start of a column to the next."""
    between = line.strip().removeprefix("|").removesuffix("|").split("|")
    return [part.strip() for part in ([line[start:end] for start, end in zip(starts, [*starts[1:], None])] if starts else between)]


def read_cell(path: Path, table: str | None, row: str | None, column: str, where: str, after: str | None = None) -> str:
    """A cell of the first column of that name, behind the column `after` if there is one; an error says what the file has instead."""

    def error(problem: str, choices: list[str]) -> DataError:
        return DataError(f"{relpath(path, ROOT)}: {problem}: expected one of {choices}; correct {where}, or the results")

    tables = parse_tables(path.read_text(encoding="utf-8"))
    if not (named := [one for one in tables if table in one.names]):
        raise error(f"no table {table!r}", sorted({name for one in tables for name in one.names if name}))
    rows = [(one.header, cells) for one in named for cells in one.rows if row in (cells[0], " ".join(cells[:2]))]
    if len(rows) != 1:
        raise error(f"{len(rows) or 'no'} rows {row!r} in table {table!r}", [cells[0] for one in named for cells in one.rows])
    header, cells = rows[0]
    start = header.index(after) + 1 if after in header else 0
    if column not in header[start:]:
        raise error(f"no column {column!r} in table {table!r}", [name for name in header[start:] if name])
    return cells[header.index(column, start)]
