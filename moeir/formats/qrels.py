"""trec_eval's judgements."""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from moeir.errors import UsageError
from moeir.formats.base import Conversion, Format
from moeir.records import lines, qrels

Judgement = tuple[str, str, int]
_MARKS = {"space": " ", "tab": "\t"}


class Qrels(Format):
    """Lines `query 0 document grade`: TREC's judgements, and MS MARCO's with `separator=tab`. `separator`: space or tab."""

    kind: ClassVar[str] = "qrels"

    def __init__(self, *, separator: str = "space") -> None:
        if separator not in _MARKS:
            raise UsageError(f"qrels:separator={separator}: expected {' or '.join(_MARKS)}")
        self._mark = _MARKS[separator]

    def read(self, path: Path, conversion: Conversion) -> Iterator[Judgement]:
        return judgements(path)

    def write(self, items: Iterator[Judgement], path: Path, conversion: Conversion) -> int:
        count = 0
        with lines.writer(path) as output:
            for query, document, grade in items:
                output.write(self._mark.join((query, "0", document, str(grade))) + "\n")
                count += 1
        return count


def judgements(path: Path | str) -> Iterator[Judgement]:
    """Every judgement of a qrels file of any form."""
    grades_by_query = qrels.read(path)
    return ((query, document, grade) for query, grades in grades_by_query.items() for document, grade in grades.items())
