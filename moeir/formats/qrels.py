"""trec_eval's judgements."""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from moeir.errors import UsageError
from moeir.formats.base import Conversion, Format
from moeir.records import lines, qrels

Judgement = tuple[str, str, int]
_SEPARATORS = {"space": " ", "tab": "\t"}


class TrecQrels(Format):
    """Lines `query 0 document grade`: TREC's judgements, and MS MARCO's with `separator=tab`. `separator`: space or tab."""

    kind: ClassVar[str] = "qrels"

    def __init__(self, *, separator: str = "space") -> None:
        if separator not in _SEPARATORS:
            raise UsageError(f"qrels:separator={separator}: expected {' or '.join(_SEPARATORS)}")
        self._separator = _SEPARATORS[separator]

    def read(self, path: Path, conversion: Conversion) -> Iterator[Judgement]:
        return read_judgements(path)

    def write(self, items: Iterator[Judgement], path: Path, conversion: Conversion) -> int:
        count = 0
        with lines.open_writer(path) as output:
            for query, document, grade in items:
                output.write(self._separator.join((query, "0", document, str(grade))) + "\n")
                count += 1
        return count


def read_judgements(path: Path | str) -> Iterator[Judgement]:
    """Every judgement of a qrels file of any form."""
    grades_by_query = qrels.read_qrels(path)
    return ((query, document, grade) for query, grades in grades_by_query.items() for document, grade in grades.items())
