"""Tevatron's training examples, with texts and by id, and its corpora."""

from dataclasses import replace
from typing import Any

from moeir.formats.base import Conversion, Format, title_and_text
from moeir.formats.examples import Examples
from moeir.formats.texts import JsonlTexts
from moeir.records import examples
from moeir.records.examples import Example


class Tevatron(Examples, Format):
    """JSON lines {"query_id", "query", "positive_passages", "negative_passages"} with texts and optional teacher `score`s: Tevatron's."""

    def to_record(self, item: Example, conversion: Conversion) -> dict[str, Any]:
        query, passages = conversion.look_up_texts(item, [])
        query, scores = replace(query, text=title_and_text(query)), item.teacher_scores
        inline = replace(item, query=query, passages=tuple(passages.values()), positive_scores=(), negative_scores=())
        record = examples.example_to_record(inline)
        for passage in (*record["positive_passages"], *record["negative_passages"]) if scores else ():
            passage["score"] = examples.trim_score(scores[passage["docid"]])
        return record


class TevatronIds(Examples, Format):
    """JSON lines {"query_id", "query_text", "positive_document_ids", "negative_document_ids"} beside a corpus: Tevatron's since 2."""

    def to_record(self, item: Example, conversion: Conversion) -> dict[str, Any]:
        where = f"query {item.query_id!r}"
        query = item.query or conversion.look_up_text("queries", item.query_id, where)
        if any(passage.id not in (conversion.corpus or {}) for passage in item.passages):
            conversion.drop_or_refuse(where, "the text of passages (name the corpus that has them with --corpus)")
        ids = {"positive_document_ids": list(item.positive_ids), "negative_document_ids": list(item.negative_ids)}
        record = {"query_id": item.query_id, "query_text": title_and_text(query), **ids}
        return record | examples.teacher_fields(item) | ({"answers": list(query.answers)} if query.answers else {})


class TevatronTexts(JsonlTexts, Format):
    """JSON lines {"docid", "title", "text"}: Tevatron's corpora."""

    id_field = "docid"
