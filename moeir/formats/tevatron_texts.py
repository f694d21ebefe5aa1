"""Tevatron's corpora and queries."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from moeir.errors import UsageError
from moeir.formats.base import Conversion, Format, title_and_text
from moeir.formats.row_files import read_unique_texts, write_json_lines
from moeir.records.texts import Text

_SIDES = ("document", "query")


class TevatronTexts(Format):
    """JSON lines {"docid", "title", "text"}, or {"query_id", "query"}: Tevatron's corpora and queries. `side`: document or query."""

    kind: ClassVar[str] = "texts"

    def __init__(self, *, side: str = "document") -> None:
        if side not in _SIDES:
            raise UsageError(f"tevatron-texts:side={side}: expected {' or '.join(_SIDES)}")
        self._side = side

    def read(self, path: Path, conversion: Conversion) -> Iterator[Text]:
        return read_unique_texts(path, conversion)

    def write(self, items: Iterator[Text], path: Path, conversion: Conversion) -> int:
        return write_json_lines((self._to_record(text, conversion) for text in items), path)

    def _to_record(self, text: Text, conversion: Conversion) -> dict[str, Any]:
        where = f"text {text.id!r}"
        if text.url:
            conversion.drop_or_refuse(where, "field 'url'")
        if self._side == "document":
            if text.answers:
                conversion.drop_or_refuse(where, "field 'answers'")
            return {"docid": text.id, "title": text.title, "text": text.text}
        if text.title:
            conversion.drop_or_refuse(where, "field 'title'")
        return {"query_id": text.id, "query": title_and_text(text), **({"answers": list(text.answers)} if text.answers else {})}
