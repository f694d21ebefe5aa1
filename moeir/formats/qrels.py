"""Judgements as TREC's."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from moeir.formats.base import Conversion, Format
from moeir.records import lines, qrels

Judgement = tuple[str, str, int]


class TrecQrels(Format):
    """Lines `query 0 document grade`: TREC's judgements, and MS MARCO's, which are tab-separated in a folder of its layout."""

    kind = "qrels"

    def __init__(self, separator: str = " ") -> None:
        self._separator = separator

    def read(self, path: Path, conversion: Conversion) -> Iterator[Judgement]:
        return iter_judgements(qrels.read_qrels(path))

    def write(self, items: Iterator[Judgement], path: Path, conversion: Conversion) -> int:
        rows = ((query, "0", document, grade) for query, document, grade in qrels.validate_judgements(items, path))
        return lines.write_rows(rows, path, self._separator)


def iter_judgements(grades: Mapping[str, Mapping[str, int]]) -> Iterator[Judgement]:
    """Query, document and grade of every judgement."""
    return ((query, document, grade) for query, documents in grades.items() for document, grade in documents.items())
