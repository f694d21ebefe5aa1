"""Tevatron's training examples, with texts and by id, its corpora and queries."""

from dataclasses import replace
from typing import Any

from moeir.errors import DataError, UsageError
from moeir.formats.base import Conversion, Format, optional_fields, title_and_text
from moeir.formats.examples import ExampleLines, own_fields
from moeir.formats.texts import TextFormat
from moeir.records import examples, runs
from moeir.records.examples import Example
from moeir.records.texts import Text

_SIDES = ("document", "query")


class Tevatron(ExampleLines, Format):
    """JSON lines {"query_id", "query", "positive_passages", "negative_passages"} with texts and optional teacher `score`s: Tevatron's."""

    key, form = "positive_passages", "query_id, query, positive_passages and negative_passages"
    fields = ("query_id", "query", "answers", "positive_passages", "negative_passages")

    def parse_record(self, record: dict[str, Any], where: str, conversion: Conversion) -> Example:
        _check_scores(record, where)
        return examples.parse_example(record, where, provenance=True)

    def to_record(self, item: Example, conversion: Conversion) -> dict[str, Any]:
        query, passages = conversion.look_up_texts(item, [])
        query, scores = replace(query, text=title_and_text(query)), item.teacher_scores
        inline = replace(item, query=query, passages=tuple(passages.values()), positive_scores=(), negative_scores=())
        record = conversion.add_fields(f"query {item.query_id!r}", examples.example_to_record(inline), item.extra)
        for passage in (*record["positive_passages"], *record["negative_passages"]) if scores else ():
            passage["score"] = float(runs.format_score(scores[passage["docid"]]))
        return record


class TevatronIds(ExampleLines, Format):
    """JSON lines {"query_id", "query_text", "positive_document_ids", "negative_document_ids"} beside a corpus: Tevatron's since 2."""

    key, form = "positive_document_ids", "query_id, query_text, positive_document_ids"
    fields = ("query_id", "query_text", "query", "positive_document_ids", "negative_document_ids")

    def parse_record(self, record: dict[str, Any], where: str, conversion: Conversion) -> Example:
        example = examples.parse_example({"negative_document_ids": [], **record}, where, provenance=True)
        query_text = record.get("query_text", record.get("query"))
        query = (conversion.queries or {}).get(example.query_id)
        if query_text and conversion.corpus is not None:
            where, ids = f"query {example.query_id!r}", (*example.positive_ids, *example.negative_ids)
            passages = tuple(conversion.look_up_text("corpus", document, where) for document in ids)
            text = str(query_text) if query is None else title_and_text(query)
            return replace(example, query=Text(example.query_id, text), passages=passages)
        if query_text and (query is None or title_and_text(query) != query_text):
            conversion.drop_or_refuse(where, "the text of the query (name the queries with --queries, or the corpus with --corpus)")
        return example

    def to_record(self, item: Example, conversion: Conversion) -> dict[str, Any]:
        where = f"query {item.query_id!r}"
        query = item.query or conversion.look_up_text("queries", item.query_id, where)
        if any(passage.id not in (conversion.corpus or {}) for passage in item.passages):
            conversion.drop_or_refuse(where, "the text of passages (name the corpus that has them with --corpus)")
        record = {
            "query_id": item.query_id,
            "query_text": title_and_text(query),
            "positive_document_ids": list(item.positive_ids),
            "negative_document_ids": list(item.negative_ids),
        }
        return conversion.add_fields(where, record | optional_fields(query) | own_fields(item), item.extra)


class TevatronTexts(TextFormat, Format):
    """JSON lines {"docid", "title", "text"}, or {"query_id", "query"}: Tevatron's corpora and queries. `side`: document or query."""

    keeps_fields = True

    def __init__(self, *, side: str = "document") -> None:
        if side not in _SIDES:
            raise UsageError(f"tevatron-texts:side={side}: expected {' or '.join(_SIDES)}")
        self._side = side

    def to_record(self, item: Text, conversion: Conversion) -> dict[str, Any]:
        where, record = f"text {item.id!r}", {"docid": item.id, "title": item.title, "text": item.text}
        if self._side == "query":
            conversion.drop_nonempty(where, {"field 'title'": item.title})
            record = {"query_id": item.id, "query": title_and_text(item)}
        return conversion.add_fields(where, record | optional_fields(item), item.extra)


def _check_scores(record: dict[str, Any], where: str) -> None:
    """DataError if only some passages have a score, which would be lost."""
    sides = {side: record.get(f"{side}_passages") or [] for side in ("positive", "negative")}
    if other := next((side for side, passages in sides.items() if not isinstance(passages, list)), None):
        raise DataError(f"{where}: {other}_passages is not a list")
    has_score = [passage.get("score") is not None for passages in sides.values() for passage in passages if isinstance(passage, dict)]
    if any(has_score) and not all(has_score):
        raise DataError(f"{where}: only some passages have a score; expected all or none")
