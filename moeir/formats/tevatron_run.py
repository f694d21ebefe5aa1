"""Runs of Tevatron's search."""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from moeir.formats import row_files
from moeir.formats.base import Conversion, Format
from moeir.formats.row_files import read_rows, write_rows
from moeir.records import runs
from moeir.records.runs import Run
from moeir.records.trec_columns import parse_float32


class TevatronRun(Format):
    """Tab-separated query, document and score: the text output of Tevatron's search."""

    kind: ClassVar[str] = "run"

    def read(self, path: Path, conversion: Conversion) -> Iterator[Run]:
        row_items = read_rows(path, 3, "query, document, score")
        hits = ((where, query, document, parse_float32(score, where)) for where, (query, document, score) in row_items)
        yield row_files.run_from_hits(hits, str(path))

    def write(self, items: Iterator[Run], path: Path, conversion: Conversion) -> int:
        run = next(items)
        row_files.drop_tag(run, conversion)
        return write_rows(((query, document, runs.format_score(score)) for query, document, _, score in row_files.iter_hits(run)), path)
