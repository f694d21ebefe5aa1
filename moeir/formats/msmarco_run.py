"""Runs of MS MARCO's evaluation script."""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from moeir.errors import DataError
from moeir.formats import row_files
from moeir.formats.base import Conversion, Format
from moeir.formats.row_files import read_rows, write_rows
from moeir.records.runs import Run


class MsmarcoRun(Format):
    """Tab-separated query, document and rank: MS MARCO's runs. Read scores come from ranks: the last hit gets 1."""

    kind: ClassVar[str] = "run"

    def read(self, path: Path, conversion: Conversion) -> Iterator[Run]:
        yield row_files.run_from_hits(row_files.scores_from_ranks(_read_hits(path)), str(path))

    def write(self, items: Iterator[Run], path: Path, conversion: Conversion) -> int:
        run = next(items)
        row_files.drop_scores(run, conversion)
        row_files.drop_tag(run, conversion)
        return write_rows(((query, document, rank) for query, document, rank, _ in row_files.iter_hits(run)), path)


def _read_hits(path: Path) -> Iterator[tuple[str, str, str, int]]:
    for where, (query, document, rank) in read_rows(path, 3, "query, document, rank"):
        if not rank.isdecimal():
            raise DataError(f"{where}: rank is not a whole number: {rank!r}", code="rank-not-a-number")
        yield where, query, document, int(rank)
