"""MS MARCO's collection.tsv and queries.tsv."""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from moeir.formats.base import Conversion, Format, one_line, one_string
from moeir.formats.reading import read_texts, write_rows
from moeir.records.texts import Text


class Tsv(Format):
    """Tab-separated id and text: MS MARCO's collection.tsv and queries.tsv."""

    kind: ClassVar[str] = "texts"

    def read(self, path: Path, conversion: Conversion) -> Iterator[Text]:
        return read_texts(path, conversion)

    def write(self, items: Iterator[Text], path: Path, conversion: Conversion) -> int:
        return write_rows((row(text, conversion) for text in items), path)


def row(text: Text, conversion: Conversion) -> tuple[str, str]:
    """The TSV columns of a text."""
    where = f"text {text.id!r}"
    if text.answers:
        conversion.lose(where, "field 'answers'")
    return text.id, one_line(one_string(text, where, conversion), where, conversion)
