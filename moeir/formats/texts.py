"""moeir's and BEIR's corpora and queries: JSON lines of `_id`, `title`, `text`."""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from moeir.formats.base import Conversion, Format
from moeir.formats.row_files import read_unique_texts
from moeir.records import texts
from moeir.records.texts import Text


class JsonlTexts(Format):
    """JSON lines {"_id", "title", "text"}, with optional `url` and `answers`: moeir's and BEIR's corpora and queries."""

    kind: ClassVar[str] = "texts"

    def read(self, path: Path, conversion: Conversion) -> Iterator[Text]:
        return read_unique_texts(path, conversion)

    def write(self, items: Iterator[Text], path: Path, conversion: Conversion) -> int:
        count = 0

        def counted() -> Iterator[Text]:
            nonlocal count
            for text in items:
                count += 1
                yield text

        texts.write_texts(counted(), path)
        return count
