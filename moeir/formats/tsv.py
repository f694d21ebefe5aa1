"""MS MARCO's collection.tsv and queries.tsv."""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from moeir.formats.base import Conversion, Format, collapse_whitespace, flatten_title
from moeir.formats.row_files import read_unique_texts, write_rows
from moeir.records.texts import Text


class Tsv(Format):
    """Tab-separated id and text: MS MARCO's collection.tsv and queries.tsv."""

    kind: ClassVar[str] = "texts"

    def read(self, path: Path, conversion: Conversion) -> Iterator[Text]:
        return read_unique_texts(path, conversion)

    def write(self, items: Iterator[Text], path: Path, conversion: Conversion) -> int:
        return write_rows((text_to_row(text, conversion) for text in items), path)


def text_to_row(text: Text, conversion: Conversion) -> tuple[str, str]:
    """The TSV columns of a text."""
    where = f"text {text.id!r}"
    if text.answers:
        conversion.drop_or_refuse(where, "field 'answers'")
    return text.id, collapse_whitespace(flatten_title(text, where, conversion), where, conversion)
