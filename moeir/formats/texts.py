"""Texts as JSON lines and as tab-separated columns; parts shared by formats that hold texts."""

from collections.abc import Iterator
from pathlib import Path

from moeir.errors import ArtifactError, DataError
from moeir.formats.base import Conversion, Format, collapse_whitespace, flatten_title
from moeir.formats.row_files import write_json_lines, write_rows
from moeir.records import lines, texts
from moeir.records.texts import Text


class JsonlTexts(Format):
    """JSON lines {"_id", "title", "text"}, with optional `url` and `answers`: moeir's and BEIR's corpora and queries."""

    kind = "texts"

    def read(self, path: Path, conversion: Conversion) -> Iterator[Text]:
        return read_unique_texts(path, conversion)

    def write(self, items: Iterator[Text], path: Path, conversion: Conversion) -> int:
        return write_json_lines(map(texts.to_record, items), path)


class Tsv(Format):
    """Tab-separated id and text: MS MARCO's collection.tsv and queries.tsv."""

    kind = "texts"

    def read(self, path: Path, conversion: Conversion) -> Iterator[Text]:
        return read_unique_texts(path, conversion)

    def write(self, items: Iterator[Text], path: Path, conversion: Conversion) -> int:
        return write_rows((_to_row(text, conversion) for text in items), path)


def _to_row(text: Text, conversion: Conversion) -> tuple[str, str]:
    where = f"text {text.id!r}"
    if text.answers:
        conversion.drop_or_refuse(where, "field 'answers'")
    return text.id, collapse_whitespace(flatten_title(text, where, conversion), where, conversion)


def read_unique_texts(source: Path | str, conversion: Conversion) -> Iterator[Text]:
    """Texts of any form with unique ids; fields that are not read are dropped or refused."""
    seen_ids: set[str] = set()
    for where, record in texts.read_records(str(source)):
        text = texts.parse_text(record, where)
        if text.id in seen_ids:
            raise DataError(f"{where}: duplicate id {text.id!r}; moeir check --fix keeps the first", code="duplicate-id")
        seen_ids.add(text.id)
        conversion.drop_unread_fields(where, record, (*texts.ID_FIELDS, *texts.TEXT_FIELDS, "title", "url", "answers"))
        yield text
    if not seen_ids:
        raise DataError(f"{lines.source_name(source)}: holds no text")


def chain_texts(files: list[Path], conversion: Conversion) -> Iterator[Text]:
    """The texts of several files; of equal ids, the first."""
    seen_ids: set[str] = set()
    for file in files:
        for text in read_unique_texts(file, conversion):
            if text.id not in seen_ids:
                seen_ids.add(text.id)
                yield text


def find_file(folder: Path, *names: str) -> Path:
    """The first existing file of these names, compressed or not."""
    for name in names:
        for compression in ("", ".gz", ".zst"):
            if (folder / f"{name}{compression}").is_file():
                return folder / f"{name}{compression}"
    raise ArtifactError(f"{folder}: no {' or '.join(names)}; expected a folder in this format's layout")
