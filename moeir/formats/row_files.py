"""Rows of files: JSON lines, and tab-separated columns."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from moeir.errors import DataError
from moeir.records import lines


def write_json_lines(records: Iterable[Any], path: Path | str) -> int:
    """Write one JSON value per line and return their number."""
    return lines.write_lines((json.dumps(record, ensure_ascii=False) for record in records), path)


def read_rows(path: Path | str, width: int, form: str) -> Iterator[tuple[str, list[str]]]:
    """The location of each line (file:line), and its tab-separated columns."""
    name = lines.source_name(path)
    with lines.open_lines(path) as numbered:
        for number, line in numbered:
            if not line.strip():
                continue
            columns = line.split("\t")
            if len(columns) != width:
                raise DataError(f"{name}:{number}: {width} columns between tabs expected ({form}), {len(columns)} found", code="columns")
            yield f"{name}:{number}", columns


def write_rows(row_values: Iterable[Iterable[object]], path: Path | str, separator: str = "\t") -> int:
    """Write separated columns and return the number of lines."""
    return lines.write_lines((separator.join(map(str, row)) for row in row_values), path)
