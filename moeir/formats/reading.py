"""Row files shared by several formats: JSON lines, TSV, named columns, run rows, files of collections; rows grouped by query."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from moeir.errors import DataError
from moeir.formats.base import Conversion, title_and_text
from moeir.records import examples, lines, texts
from moeir.records.examples import Example
from moeir.records.texts import Text


def read_unique_texts(source: Path | str, conversion: Conversion) -> Iterator[Text]:
    """Texts of any form with unique ids; fields that are not read are dropped or refused."""
    seen_ids: set[str] = set()
    for where, record in texts.read_records(str(source)):
        text = texts.parse_text(record, where)
        if text.id in seen_ids:
            raise DataError(f"{where}: duplicate id {text.id!r}; moeir check --fix keeps the first")
        seen_ids.add(text.id)
        conversion.drop_unread_fields(where, record, (*texts.ID_FIELDS, *texts.TEXT_FIELDS, "title", "url", "answers"))
        yield text
    if not seen_ids:
        raise DataError(f"{lines.source_name(source)}: holds no text")


def read_json_lines(path: Path | str) -> Iterator[tuple[str, Any]]:
    """The location of each JSON value (file:line), and the value."""
    name = lines.source_name(path)
    with lines.open_lines(path) as numbered:
        for number, line in numbered:
            if line.strip():
                yield f"{name}:{number}", texts.parse_json(line, f"{name}:{number}")


def write_json_lines(records: Iterable[Any], path: Path | str) -> int:
    """Write one JSON value per line and return their number."""
    count = 0
    with lines.open_writer(path) as output:
        for record in records:
            output.write(json.dumps(record, ensure_ascii=False) + "\n")
            count += 1
    return count


def read_rows(path: Path | str, width: int, form: str) -> Iterator[tuple[str, list[str]]]:
    """The location of each line (file:line), and its tab-separated columns."""
    name = lines.source_name(path)
    with lines.open_lines(path) as numbered:
        for number, line in numbered:
            if not line.strip():
                continue
            columns = line.split("\t")
            if len(columns) != width:
                raise DataError(f"{name}:{number}: {width} columns between tabs expected ({form}), {len(columns)} found")
            yield f"{name}:{number}", columns


def write_rows(row_values: Iterable[Iterable[object]], path: Path | str) -> int:
    """Write tab-separated columns and return the number of lines."""
    count = 0
    with lines.open_writer(path) as output:
        for row in row_values:
            output.write("\t".join(map(str, row)) + "\n")
            count += 1
    return count


def parse_string_list(record: dict[str, Any], name: str, where: str) -> list[str]:
    """A field that is a list of strings; empty if the field is absent."""
    values = record.get(name)
    if values is None:
        return []
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise DataError(f"{where}: {name} is not a list of strings")
    return values


def text_digest(text: str) -> str:
    """An id for a text without one: equal texts get equal ids.

    >>> digest("An owl.")
    '359b67d612d5691c'
    """
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def text_with_digest_id(text: str) -> Text:
    """A `Text` whose id is the digest of the text.

    >>> named("An owl.") == Text(digest("An owl."), "An owl.")
    True
    """
    return Text(text_digest(text), text)


def has_digest_id(text: Text) -> bool:
    """Whether a text's id is the one of `text_with_digest_id`, so that dropping it loses nothing."""
    return text.id == text_digest(title_and_text(text))


def validate_example(example: Example, where: str) -> Example:
    """Check an example as every reader does (a positive, no document twice or on both sides) and return it."""
    record = {"query_id": example.query_id, "positive_ids": list(example.positive_ids), "negative_ids": list(example.negative_ids)}
    examples.parse_example(record, where, provenance=False)
    return example


class GroupByQuery:
    """Rows of (query, positive, negatives) grouped into one example per query, in order of first appearance.

    An example has one list of negatives, so every positive of a query must have the same ones; else the difference is lost.
    """

    def __init__(self, conversion: Conversion) -> None:
        self._conversion = conversion
        self._queries: dict[str, dict[str, list[str]]] = {}
        self._texts: dict[str, Text] = {}
        self._where: dict[str, str] = {}

    def add(self, where: str, query: Text, positive: Text, negatives: Iterable[Text]) -> None:
        """Add one row."""
        self._where.setdefault(query.id, where)
        row_negatives = self._queries.setdefault(query.id, {}).setdefault(positive.id, [])
        for text in (query, positive, *(negatives := list(negatives))):
            self._texts[text.id] = text
        row_negatives += [negative.id for negative in negatives if negative.id not in row_negatives]

    def examples(self, *, inline: bool = True) -> Iterator[Example]:
        """One example per query."""
        for query, groups in self._queries.items():
            where = self._where[query]
            negatives = list(dict.fromkeys(negative for group in groups.values() for negative in group))
            if any(set(group) != set(negatives) for group in groups.values()):
                self._conversion.drop_or_refuse(where, "which negatives belong to which positive")
            if overlap := [negative for negative in negatives if negative in groups]:
                self._conversion.drop_or_refuse(where, "a positive that is a negative elsewhere")
                negatives = [negative for negative in negatives if negative not in overlap]
            example = Example(query, tuple(groups), tuple(negatives))
            if inline:
                passages = tuple(self._texts[document] for document in (*groups, *negatives))
                example = replace(example, query=self._texts[query], passages=passages)
            yield validate_example(example, where)
