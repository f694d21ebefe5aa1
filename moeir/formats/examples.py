"""Training examples of moeir, Tevatron and DPR, which `records.examples` reads."""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from moeir.formats.base import Conversion, Format, title_and_text, unread_fields
from moeir.records import examples, lines, texts
from moeir.records.examples import Example

OWN_FIELDS = ("positive_scores", "negative_scores", "negative_provenance")  # of moeir's examples, which other tools do not read
IDS_AND_PASSAGES = ("query_id", *(f"{side}_{what}" for side in ("positive", "negative") for what in ("ids", "document_ids", "passages")))


class Examples(Format):
    """JSON lines {"query_id", "positive_ids", "negative_ids"}, or inline texts as Tevatron's; scores, provenance: moeir's examples."""

    kind = "examples"

    def read(self, path: Path, conversion: Conversion) -> Iterator[Example]:
        for where, record, example in examples.read_examples_with_records(path):
            has_query_text = "positive_passages" in record or conversion.queries is not None
            known = (*IDS_AND_PASSAGES, *OWN_FIELDS, *(("query", "query_text", "answers") if has_query_text else ()))
            conversion.drop_fields(where, unread_fields(record, known, [("query", "query_text")]))
            known = (*texts.KNOWN_FIELDS, *["score"] * bool(example.positive_scores))
            for passage in chain.from_iterable(record.get(f"{side}_passages") or () for side in ("positive", "negative")):
                conversion.drop_fields(where, unread_fields(passage, known, texts.SYNONYMS))
            yield example

    def to_record(self, item: Example, conversion: Conversion) -> dict[str, Any]:
        return examples.example_to_record(item)


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
        corpus = conversion.corpus or {}
        if any(passage.id not in corpus or corpus[passage.id].content != passage.content for passage in item.passages):
            conversion.drop_or_refuse(where, "the text of passages (name the corpus that has them, as they are here, with --corpus)")
        ids = {"positive_document_ids": list(item.positive_ids), "negative_document_ids": list(item.negative_ids)}
        record = {"query_id": item.query_id, "query_text": title_and_text(query), **ids}
        return record | examples.teacher_fields(item) | ({"answers": list(query.answers)} if query.answers else {})


class Dpr(Examples, Format):
    """One JSON array of {"question", "answers", "positive_ctxs", "hard_negative_ctxs"}, each a title and a text: DPR's training files."""

    def write(self, items: Iterator[Example], path: Path, conversion: Conversion) -> int:
        count = 0
        with lines.open_writer(path) as output:
            output.write("[")
            for example in items:
                output.write((",\n" if count else "\n") + json.dumps(_to_entry(example, conversion), ensure_ascii=False))
                count += 1
            output.write("\n]\n")
        return count


def _to_entry(example: Example, conversion: Conversion) -> dict[str, Any]:
    query, passages = conversion.look_up_texts(example, [])

    def list_contexts(ids: tuple[str, ...]) -> list[dict[str, Any]]:
        return [
            {"title": passage.title, "text": passage.text, "passage_id": passage.id} | ({"url": passage.url} if passage.url else {})
            for passage in map(passages.__getitem__, ids)
        ]

    entry = {
        "question_id": example.query_id,
        "question": title_and_text(query),
        "answers": list(query.answers),
        "positive_ctxs": list_contexts(example.positive_ids),
        "negative_ctxs": [],
        "hard_negative_ctxs": list_contexts(example.negative_ids),
    }
    return entry | examples.teacher_fields(example)
