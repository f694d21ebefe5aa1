"""Runs of ColBERT's searcher."""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from moeir.formats import row_files
from moeir.formats.base import Conversion, Format
from moeir.formats.row_files import read_rows, write_rows
from moeir.records import runs
from moeir.records.runs import Run
from moeir.records.trec_columns import parse_float32


class ColbertRun(Format):
    """Tab-separated query, document, rank and score: ColBERT's ranking.tsv."""

    kind: ClassVar[str] = "run"

    def read(self, path: Path, conversion: Conversion) -> Iterator[Run]:
        row_items = read_rows(path, 4, "query, document, rank, score")
        hits = ((where, query, document, parse_float32(score, where)) for where, (query, document, _, score) in row_items)
        yield row_files.run_from_hits(hits, str(path))

    def write(self, items: Iterator[Run], path: Path, conversion: Conversion) -> int:
        run = next(items)
        row_files.drop_tag(run, conversion)
        return write_rows(
            ((query, document, rank, runs.format_score(score)) for query, document, rank, score in row_files.iter_hits(run)), path
        )
