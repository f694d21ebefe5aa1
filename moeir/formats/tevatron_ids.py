"""Tevatron's training examples by id, as its second and third versions have them."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from moeir.errors import DataError
from moeir.formats.base import Conversion, Format, looked_up, whole
from moeir.formats.reading import json_lines, write_json_lines
from moeir.records import examples
from moeir.records.examples import Example
from moeir.records.texts import Text

_FIELDS = ("query_id", "query_text", "query", "positive_document_ids", "negative_document_ids")


class TevatronIds(Format):
    """JSON lines {"query_id", "query_text", "positive_document_ids", "negative_document_ids"} beside a corpus: Tevatron's since 2."""

    kind: ClassVar[str] = "examples"

    def read(self, path: Path, conversion: Conversion) -> Iterator[Example]:
        known: set[str] = set()
        for where, record in json_lines(path):
            if not isinstance(record, dict) or "positive_document_ids" not in record:
                raise DataError(f"{where}: an object with query_id, query_text, positive_document_ids was expected")
            conversion.lose_fields(where, record, _FIELDS)
            example = examples.parsed({"negative_document_ids": [], **record}, where, provenance=False)
            words = record.get("query_text", record.get("query"))
            held = None if conversion.queries is None else conversion.queries.get(example.query_id)
            if words and conversion.corpus is not None:
                example = _with(example, words if held is None else whole(held), conversion)
            elif words and (held is None or whole(held) != words):
                conversion.lose(where, "the text of the query (name the queries with --queries, or the corpus with --corpus)")
            if example.query_id in known:
                raise DataError(f"{where}: query {example.query_id!r} stands on an earlier line too; one line per query was expected")
            known.add(example.query_id)
            yield example

    def write(self, items: Iterator[Example], path: Path, conversion: Conversion) -> int:
        return write_json_lines((_record(example, conversion) for example in items), path)


def _with(example: Example, words: Any, conversion: Conversion) -> Example:
    """With the query's own text, and the passages of the corpus."""
    where = f"query {example.query_id!r}"
    ids = (*example.positive_ids, *example.negative_ids)
    passages = tuple(looked_up(conversion.corpus, document, "--corpus", where, conversion.target) for document in ids)
    return replace(example, query=Text(example.query_id, str(words)), passages=passages)


def _record(example: Example, conversion: Conversion) -> dict[str, Any]:
    where = f"query {example.query_id!r}"
    query = example.query or looked_up(conversion.queries, example.query_id, "--queries", where, conversion.target)
    example = conversion.with_ids(example, where)
    for what, held in (
        ("field 'negative_provenance'", example.provenance),
        ("a teacher's scores", example.positive_scores),
        ("field 'answers'", query.answers),
    ):
        if held:
            conversion.lose(where, what)
    return {
        "query_id": example.query_id,
        "query_text": whole(query),
        "positive_document_ids": list(example.positive_ids),
        "negative_document_ids": list(example.negative_ids),
    }
