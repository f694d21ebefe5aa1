"""Texts as JSON lines and as tab-separated columns; parts shared by formats that hold texts."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from moeir import data_sources
from moeir.errors import ArtifactError, DataError
from moeir.formats import base
from moeir.formats.base import Conversion, Format, flatten_title, replace_line_breaks, unread_fields
from moeir.records import lines, texts
from moeir.records.texts import Text


class TextFormat(base.Format):
    """Corpora and queries, which are read in whichever form they have."""

    kind = "texts"

    def read(self, path: Path, conversion: Conversion) -> Iterator[Text]:
        """The texts of a file."""
        return read_unique_texts(path)


class JsonlTexts(TextFormat, Format):
    """JSON lines {"_id", "title", "text"}, with optional `url` and `answers`: moeir's and BEIR's corpora and queries."""

    id_field: ClassVar[str] = "_id"

    def to_record(self, item: Text, conversion: Conversion) -> dict[str, Any]:
        record = texts.to_record(item)
        extra = dict(item.extra or {})
        synonyms = {name: extra.pop(name) for name in texts.KNOWN_FIELDS if name in extra}  # which would be read in another's place
        conversion.drop_fields(f"text {item.id!r}", synonyms)
        return {self.id_field: record.pop("_id"), **record, **extra}


class TevatronTexts(JsonlTexts, Format):
    """JSON lines {"docid", "title", "text"}: Tevatron's corpora."""

    id_field = "docid"


class Tsv(TextFormat, Format):
    """Tab-separated id and text: MS MARCO's collection.tsv and queries.tsv."""

    def write(self, items: Iterator[Text], path: Path, conversion: Conversion) -> int:
        return lines.write_rows((_to_row(text, conversion) for text in items), path)


def _to_row(text: Text, conversion: Conversion) -> tuple[str, str]:
    where = f"text {text.id!r}"
    conversion.drop_nonempty(where, {base.ANSWERS: text.answers})
    conversion.drop_fields(where, text.extra)
    return text.id, replace_line_breaks(flatten_title(text, where, conversion), where, conversion)


def read_unique_texts(source: Path | str) -> Iterator[Text]:
    """Texts of any form with unique ids, and with the fields that are not read."""
    for _, record, text in texts.read_texts_with_records(source):
        extra = unread_fields(record, texts.KNOWN_FIELDS, texts.SYNONYMS)
        yield text if extra is None else replace(text, extra=extra)


def chain_texts(files: list[Path]) -> Iterator[Text]:
    """The texts of several files; one may stand in several, as that of a query in those of two splits."""
    by_name: dict[Path, list[Path]] = {}
    for file in files:
        by_name.setdefault(lines.strip_compression_suffix(file), []).append(file)
    digests: dict[str, int] = {}
    for file in filter(None, map(data_sources.require_single, by_name.values())):
        for text in read_unique_texts(file):
            if text.id not in digests:
                yield text
            if digests.setdefault(text.id, hash(text)) != hash(text):
                raise DataError(f"{file}: {text.id!r} has another text in an earlier file")


def require_file(folder: Path, name: str) -> Path:
    """The file of this name, compressed or not; ArtifactError if there is none."""
    if (file := data_sources.find_file(folder, name)) is not None:
        return file
    raise ArtifactError(f"{folder}: no {name}; expected a folder in this format's layout")
