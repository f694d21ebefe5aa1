"""Tevatron's training examples by id, the form of its versions 2 and 3."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from moeir.errors import DataError
from moeir.formats.base import Conversion, Format, look_up_text, title_and_text
from moeir.formats.row_files import read_json_lines, write_json_lines
from moeir.records import examples
from moeir.records.examples import Example
from moeir.records.texts import Text

_FIELDS = ("query_id", "query_text", "query", "positive_document_ids", "negative_document_ids")


class TevatronIds(Format):
    """JSON lines {"query_id", "query_text", "positive_document_ids", "negative_document_ids"} beside a corpus: Tevatron's since 2."""

    kind: ClassVar[str] = "examples"

    def read(self, path: Path, conversion: Conversion) -> Iterator[Example]:
        seen_ids: set[str] = set()
        for where, record in read_json_lines(path):
            if not isinstance(record, dict) or "positive_document_ids" not in record:
                raise DataError(f"{where}: an object with query_id, query_text, positive_document_ids was expected", code="not-an-object")
            conversion.drop_unread_fields(where, record, _FIELDS)
            example = examples.parse_example({"negative_document_ids": [], **record}, where, provenance=False)
            query_text = record.get("query_text", record.get("query"))
            query = None if conversion.queries is None else conversion.queries.get(example.query_id)
            if query_text and conversion.corpus is not None:
                example = _inline_texts(example, query_text if query is None else title_and_text(query), conversion)
            elif query_text and (query is None or title_and_text(query) != query_text):
                conversion.drop_or_refuse(where, "the text of the query (name the queries with --queries, or the corpus with --corpus)")
            if example.query_id in seen_ids:
                raise DataError(f"{where}: duplicate query id {example.query_id!r}; expected one line per query", code="duplicate-id")
            seen_ids.add(example.query_id)
            yield example

    def write(self, items: Iterator[Example], path: Path, conversion: Conversion) -> int:
        return write_json_lines((_to_record(example, conversion) for example in items), path)


def _inline_texts(example: Example, query_text: Any, conversion: Conversion) -> Example:
    """The example with this query text and the passages of the corpus."""
    where = f"query {example.query_id!r}"
    ids = (*example.positive_ids, *example.negative_ids)
    passages = tuple(look_up_text(conversion.corpus, document, "--corpus", where, conversion.target) for document in ids)
    return replace(example, query=Text(example.query_id, str(query_text)), passages=passages)


def _to_record(example: Example, conversion: Conversion) -> dict[str, Any]:
    where = f"query {example.query_id!r}"
    query = example.query or look_up_text(conversion.queries, example.query_id, "--queries", where, conversion.target)
    example = conversion.strip_texts(example, where)
    for what, present in (
        ("field 'negative_provenance'", example.provenance),
        ("a teacher's scores", example.positive_scores),
        ("field 'answers'", query.answers),
    ):
        if present:
            conversion.drop_or_refuse(where, what)
    return {
        "query_id": example.query_id,
        "query_text": title_and_text(query),
        "positive_document_ids": list(example.positive_ids),
        "negative_document_ids": list(example.negative_ids),
    }
