"""Queries that a model wrote for documents: one JSON line for each document, `{"_id": …, "queries": […]}`."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from moeir.errors import DataError
from moeir.records import lines, texts


@dataclass(frozen=True, slots=True)
class Generated:
    """A document's id and its queries, of which there may be none."""

    id: str
    queries: tuple[str, ...]


def line(document: str, queries: Sequence[str]) -> str:
    """A document's queries as they stand in the file, without the newline.

    >>> line("d1", ["what do owls hunt", "owls at night"])
    '{"_id": "d1", "queries": ["what do owls hunt", "owls at night"]}'
    """
    return json.dumps({"_id": document, "queries": list(queries)}, ensure_ascii=False)


def read(source: Path | str, *, part: bool = False) -> Iterator[Generated]:
    """The records of a file or a pipe, one at a time; a faulty one stops the reading and says where it stands.

    One `part` of several may hold none: a shard of a corpus too small for so many.
    """
    ids: set[str] = set()
    with lines.opened(source) as numbered:
        for number, text in numbered:
            if not text.strip():
                continue
            record = _parsed(text, where := f"{lines.label(source)}:{number}")
            if record.id in ids:
                raise DataError(f"{where}: id {record.id!r} stands on an earlier line too; ids must be unique")
            ids.add(record.id)
            yield record
    if not ids and not part:
        raise DataError(f"{lines.label(source)}: holds no record; JSON lines of _id and queries were expected")


def _parsed(text: str, where: str) -> Generated:
    record = texts.loaded(text, where)
    if not isinstance(record, dict) or not {"_id", "queries"} <= record.keys():
        raise DataError(f"{where}: an object with _id and queries was expected, as generate-queries writes them")
    queries = record["queries"]
    if not isinstance(queries, list) or not all(isinstance(query, str) for query in queries):
        raise DataError(f"{where}: queries is not a list of strings")
    return Generated(texts.identifier(record["_id"], where), tuple(queries))
