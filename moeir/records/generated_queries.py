"""Generated queries (doc2query): one JSON line per document or span of one, `{"_id": …, "queries": […]}`.

The id of a span is `DOCUMENT#char=BEGIN,END`, its characters in the document's title, a space and text (the ranges of RFC 5147).
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from moeir.errors import DataError
from moeir.records import lines, texts

_SPAN_ID = re.compile(r"(?P<document>.+)#char=(?P<begin>[0-9]{1,18}),(?P<end>[0-9]{1,18})", re.DOTALL)


@dataclass(frozen=True, slots=True)
class GeneratedQueries:
    """The id of a document or a span, and the queries generated for it, possibly none."""

    id: str
    queries: tuple[str, ...]


def format_line(document: str, queries: Sequence[str]) -> str:
    """The line of a document's queries, without the newline.

    >>> format_line("d1", ["what do owls hunt", "owls at night"])
    '{"_id": "d1", "queries": ["what do owls hunt", "owls at night"]}'
    """
    return json.dumps({"_id": document, "queries": list(queries)}, ensure_ascii=False)


def format_span_id(document: str, begin: int, end: int) -> str:
    """The id of the characters from `begin` up to `end` of a document's content.

    >>> format_span_id("d1", 0, 512)
    'd1#char=0,512'
    """
    return f"{document}#char={begin},{end}"


def parse_span_id(text: str) -> tuple[str, int, int] | None:
    """Document, begin and end of a span's id; None for any other id.

    >>> parse_span_id("d1#char=0,512"), parse_span_id("d1#0")
    (('d1', 0, 512), None)
    """
    match = _SPAN_ID.fullmatch(text)
    return None if match is None else (match["document"], int(match["begin"]), int(match["end"]))


def read_generated_queries(source: Path | str, *, allow_empty: bool = False) -> Iterator[GeneratedQueries]:
    """Read the records of a file or a pipe one at a time; DataError with the line of a faulty one.

    With `allow_empty` the file may be empty: a small corpus has empty shards.
    """
    ids: set[str] = set()
    for where, record in texts.read_objects(source):
        queries = record.get("queries")
        if "_id" not in record or not isinstance(queries, list) or not all(isinstance(query, str) for query in queries):
            raise DataError(f"{where}: expected _id, and queries as a list of strings, as generate-queries writes them")
        name = texts.parse_id(record["_id"], where)
        if name in ids:
            raise DataError(f"{where}: duplicate id {name!r}; ids must be unique")
        ids.add(name)
        yield GeneratedQueries(name, tuple(queries))
    if not ids and not allow_empty:
        raise DataError(f"{lines.source_name(source)}: holds no record; expected JSON lines with _id and queries")
