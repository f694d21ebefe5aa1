"""Anserini's and Pyserini's JsonCollection."""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from moeir.formats.base import Conversion, Format, flatten_title
from moeir.formats.row_files import read_unique_texts, write_json_lines
from moeir.records.texts import Text


class AnseriniTexts(Format):
    """JSON lines {"id", "contents"}: Anserini's and Pyserini's JsonCollection."""

    kind: ClassVar[str] = "texts"

    def read(self, path: Path, conversion: Conversion) -> Iterator[Text]:
        return read_unique_texts(path, conversion)

    def write(self, items: Iterator[Text], path: Path, conversion: Conversion) -> int:
        return write_json_lines((_to_record(text, conversion) for text in items), path)


def _to_record(text: Text, conversion: Conversion) -> dict[str, str]:
    where = f"text {text.id!r}"
    if text.answers:
        conversion.drop_or_refuse(where, "field 'answers'")
    return {"id": text.id, "contents": flatten_title(text, where, conversion)}
