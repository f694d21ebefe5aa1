"""Tevatron's training examples, with texts and by id, and its corpora."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from moeir.formats.base import Conversion, Format, optional_fields, title_and_text
from moeir.formats.examples import OWN_FIELDS, Examples, collect_all_fields
from moeir.formats.texts import JsonlTexts
from moeir.records import examples
from moeir.records.examples import Example
from moeir.records.texts import Text


class Tevatron(Examples, Format):
    """JSON lines {"query_id", "query", "positive_passages", "negative_passages"} with texts and optional teacher `score`s: Tevatron's."""

    def to_record(self, item: Example, conversion: Conversion) -> dict[str, Any]:
        query, passages = conversion.look_up_texts(item, [])
        query, scores = replace(query, text=title_and_text(query)), item.teacher_scores
        inline = replace(item, query=query, passages=tuple(passages.values()), positive_scores=(), negative_scores=())
        record = conversion.add_fields(f"query {item.query_id!r}", examples.example_to_record(inline), item.extra)
        for passage in (*record["positive_passages"], *record["negative_passages"]) if scores else ():
            passage["score"] = examples.trim_score(scores[passage["docid"]])
        return record


class TevatronIds(Format):
    """JSON lines {"query_id", "query_text", "positive_document_ids", "negative_document_ids"} beside a corpus: Tevatron's since 2."""

    kind = "examples"
    keeps_fields = True

    def read(self, path: Path, conversion: Conversion) -> Iterator[Example]:
        known = ("query_id", "query_text", "query", "positive_document_ids", "negative_document_ids", *OWN_FIELDS)
        for where, record, example in examples.read_examples_with_records(path):
            with_texts = _add_texts(example, record.get("query_text", record.get("query")), where, conversion)
            yield collect_all_fields(where, record, with_texts, known, conversion)

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
        return conversion.add_fields(where, record | optional_fields(query) | examples.teacher_fields(item), item.extra)


def _add_texts(example: Example, query_text: Any, where: str, conversion: Conversion) -> Example:
    """The example with the text of its query and the passages of the corpus, if there is one."""
    query = (conversion.queries or {}).get(example.query_id)
    if query_text and conversion.corpus is not None:
        documents = (*example.positive_ids, *example.negative_ids)
        passages = tuple(conversion.look_up_text("corpus", document, f"query {example.query_id!r}") for document in documents)
        text = str(query_text) if query is None else title_and_text(query)
        return replace(example, query=Text(example.query_id, text), passages=passages)
    if query_text and (query is None or title_and_text(query) != query_text):
        conversion.drop_or_refuse(where, "the text of the query (name the queries with --queries, or the corpus with --corpus)")
    return example


class TevatronTexts(JsonlTexts, Format):
    """JSON lines {"docid", "title", "text"}: Tevatron's corpora."""

    id_field = "docid"
