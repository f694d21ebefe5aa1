"""What the readers of several formats share: texts with nothing unread, rows between tabs, rows of one query brought together."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from moeir.errors import DataError
from moeir.formats.base import Conversion, whole
from moeir.records import examples, lines, texts
from moeir.records.examples import Example
from moeir.records.texts import Text


def read_texts(source: Path | str, conversion: Conversion) -> Iterator[Text]:
    """Texts of any form, each id once; a field that is not read would be lost."""
    seen_ids: set[str] = set()
    for where, record in texts.records(str(source)):
        text = texts.parsed(record, where)
        if text.id in seen_ids:
            raise DataError(f"{where}: id {text.id!r} stands on an earlier line too; moeir check --fix keeps the first")
        seen_ids.add(text.id)
        conversion.lose_fields(where, record, (*texts.IDS, *texts.TEXTS, "title", "url", "answers"))
        yield text
    if not seen_ids:
        raise DataError(f"{lines.label(source)}: holds no text")


def json_lines(path: Path | str) -> Iterator[tuple[str, Any]]:
    """Where each JSON value stands, and the value."""
    name = lines.label(path)
    with lines.opened(path) as numbered:
        for number, line in numbered:
            if line.strip():
                yield f"{name}:{number}", texts.loaded(line, f"{name}:{number}")


def write_json_lines(records: Iterable[Any], path: Path | str) -> int:
    """One JSON value a line; how many."""
    count = 0
    with lines.writer(path) as output:
        for record in records:
            output.write(json.dumps(record, ensure_ascii=False) + "\n")
            count += 1
    return count


def rows(path: Path | str, width: int, form: str) -> Iterator[tuple[str, list[str]]]:
    """The columns between tabs of every line."""
    name = lines.label(path)
    with lines.opened(path) as numbered:
        for number, line in numbered:
            if not line.strip():
                continue
            columns = line.split("\t")
            if len(columns) != width:
                raise DataError(f"{name}:{number}: {width} columns between tabs expected ({form}), {len(columns)} found")
            yield f"{name}:{number}", columns


def write_rows(row_values: Iterable[Iterable[object]], path: Path | str) -> int:
    """Columns between tabs; how many lines."""
    count = 0
    with lines.writer(path) as output:
        for row in row_values:
            output.write("\t".join(map(str, row)) + "\n")
            count += 1
    return count


def strings(record: dict[str, Any], name: str, where: str) -> list[str]:
    """A field that is a list of strings; nothing if it is absent."""
    values = record.get(name)
    if values is None:
        return []
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise DataError(f"{where}: {name} is not a list of strings")
    return values


def digest(text: str) -> str:
    """The id of a text that has none: the same text, the same id.

    >>> digest("An owl.")
    '359b67d612d5691c'
    """
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def named(text: str) -> Text:
    """A text that has no id of its own.

    >>> named("An owl.") == Text(digest("An owl."), "An owl.")
    True
    """
    return Text(digest(text), text)


def is_named(text: Text) -> bool:
    """Whether the id of a text is the one that `named` gives it, so that nothing is lost without it."""
    return text.id == digest(whole(text))


def checked(example: Example, where: str) -> Example:
    """The example by the rules of every reader: a positive, no document twice or on both sides."""
    record = {"query_id": example.query_id, "positive_ids": list(example.positive_ids), "negative_ids": list(example.negative_ids)}
    examples.parsed(record, where, provenance=False)
    return example


class Grouped:
    """Rows of a query, a positive and its negatives, brought together by query in order of first appearance.

    What is lost in that, which negatives stood beside which positive, must be the same for every positive of a query.
    """

    def __init__(self, conversion: Conversion) -> None:
        self._conversion = conversion
        self._queries: dict[str, dict[str, list[str]]] = {}
        self._texts: dict[str, Text] = {}
        self._where: dict[str, str] = {}

    def add(self, where: str, query: Text, positive: Text, negatives: Iterable[Text]) -> None:
        """One row."""
        self._where.setdefault(query.id, where)
        row_negatives = self._queries.setdefault(query.id, {}).setdefault(positive.id, [])
        for text in (query, positive, *(negatives := list(negatives))):
            self._texts[text.id] = text
        row_negatives += [negative.id for negative in negatives if negative.id not in row_negatives]

    def examples(self, *, inline: bool = True) -> Iterator[Example]:
        """One example for each query."""
        for query, groups in self._queries.items():
            where = self._where[query]
            negatives = list(dict.fromkeys(negative for group in groups.values() for negative in group))
            if any(set(group) != set(negatives) for group in groups.values()):
                self._conversion.lose(where, "which negatives stood beside which positive")
            if overlap := [negative for negative in negatives if negative in groups]:
                self._conversion.lose(where, "a positive that is a negative elsewhere")
                negatives = [negative for negative in negatives if negative not in overlap]
            example = Example(query, tuple(groups), tuple(negatives))
            if inline:
                passages = tuple(self._texts[document] for document in (*groups, *negatives))
                example = replace(example, query=self._texts[query], passages=passages)
            yield checked(example, where)
