"""BEIR's judgements."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import ClassVar

from moeir.formats.base import Conversion, Format
from moeir.formats.qrels import Judgement, read_judgements
from moeir.formats.row_files import write_rows

QRELS_HEADER = ("query-id", "corpus-id", "score")


class BeirQrels(Format):
    """A header and three tab-separated columns, query-id, corpus-id, score: BEIR's judgements."""

    kind: ClassVar[str] = "qrels"

    def read(self, path: Path, conversion: Conversion) -> Iterator[Judgement]:
        return read_judgements(path)

    def write(self, items: Iterator[Judgement], path: Path, conversion: Conversion) -> int:
        return write_rows(chain([QRELS_HEADER], items), path) - 1
