"""Generated queries (doc2query): one JSON line per document, `{"_id": …, "queries": […]}`."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moeir.errors import DataError
from moeir.records import lines, texts


@dataclass(frozen=True, slots=True)
class GeneratedQueries:
    """A document's id and its generated queries, possibly none."""

    id: str
    queries: tuple[str, ...]


def format_line(document: str, queries: Sequence[str]) -> str:
    """The line of a document's queries, without the newline.

    >>> format_line("d1", ["what do owls hunt", "owls at night"])
    '{"_id": "d1", "queries": ["what do owls hunt", "owls at night"]}'
    """
    return json.dumps({"_id": document, "queries": list(queries)}, ensure_ascii=False)


def read_generated_queries(source: Path | str, *, allow_empty: bool = False) -> Iterator[GeneratedQueries]:
    """Read the records of a file or a pipe one at a time; DataError with the line of a faulty one.

    With `allow_empty` the file may be empty: a small corpus has empty shards.
    """
    ids: set[str] = set()
    for where, value in texts.read_json_lines(source):
        record = _parse_record(value, where)
        if record.id in ids:
            raise DataError(f"{where}: duplicate id {record.id!r}; ids must be unique", code="duplicate-id")
        ids.add(record.id)
        yield record
    if not ids and not allow_empty:
        raise DataError(f"{lines.source_name(source)}: holds no record; expected JSON lines with _id and queries")


def _parse_record(record: Any, where: str) -> GeneratedQueries:
    if not isinstance(record, dict) or not {"_id", "queries"} <= record.keys():
        raise DataError(f"{where}: expected an object with _id and queries, as generate-queries writes them", code="not-an-object")
    queries = record["queries"]
    if not isinstance(queries, list) or not all(isinstance(query, str) for query in queries):
        raise DataError(f"{where}: queries is not a list of strings", code="not-a-list")
    return GeneratedQueries(texts.parse_id(record["_id"], where), tuple(queries))
