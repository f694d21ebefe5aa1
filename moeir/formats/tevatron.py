"""Tevatron's training examples, with texts and by id, its runs, corpora and queries."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from moeir.errors import DataError, UsageError
from moeir.formats.base import Conversion, Format, look_up_text, title_and_text
from moeir.formats.row_files import read_json_lines, read_rows, write_json_lines, write_rows
from moeir.formats.run import drop_tag, iter_hits, run_from_hits
from moeir.formats.texts import read_unique_texts
from moeir.records import examples, runs
from moeir.records.examples import Example
from moeir.records.runs import Run
from moeir.records.texts import Text
from moeir.records.trec_columns import parse_float32

_FIELDS = ("query_id", "query", "answers", "positive_passages", "negative_passages")
_FIELDS_BY_ID = ("query_id", "query_text", "query", "positive_document_ids", "negative_document_ids")
_SIDES = ("document", "query")


class Tevatron(Format):
    """JSON lines {"query_id", "query", "positive_passages", "negative_passages"} with texts and optional teacher `score`s: Tevatron's."""

    kind = "examples"

    def read(self, path: Path, conversion: Conversion) -> Iterator[Example]:
        seen_ids: set[str] = set()
        for where, record in read_json_lines(path):
            if not isinstance(record, dict) or "positive_passages" not in record:
                raise DataError(
                    f"{where}: an object with query_id, query, positive_passages and negative_passages was expected", code="not-an-object"
                )
            conversion.drop_unread_fields(where, record, _FIELDS)
            example = examples.parse_example(_collect_scores(record, where, conversion), where, provenance=False)
            if example.query_id in seen_ids:
                raise DataError(f"{where}: duplicate query id {example.query_id!r}; expected one line per query", code="duplicate-id")
            seen_ids.add(example.query_id)
            yield example

    def write(self, items: Iterator[Example], path: Path, conversion: Conversion) -> int:
        return write_json_lines((_to_record(example, conversion) for example in items), path)


class TevatronIds(Format):
    """JSON lines {"query_id", "query_text", "positive_document_ids", "negative_document_ids"} beside a corpus: Tevatron's since 2."""

    kind = "examples"

    def read(self, path: Path, conversion: Conversion) -> Iterator[Example]:
        seen_ids: set[str] = set()
        for where, record in read_json_lines(path):
            if not isinstance(record, dict) or "positive_document_ids" not in record:
                raise DataError(f"{where}: an object with query_id, query_text, positive_document_ids was expected", code="not-an-object")
            conversion.drop_unread_fields(where, record, _FIELDS_BY_ID)
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
        return write_json_lines((_to_record_by_id(example, conversion) for example in items), path)


class TevatronRun(Format):
    """Tab-separated query, document and score: the text output of Tevatron's search."""

    kind = "run"

    def read(self, path: Path, conversion: Conversion) -> Iterator[Run]:
        row_items = read_rows(path, 3, "query, document, score")
        hits = ((where, query, document, parse_float32(score, where)) for where, (query, document, score) in row_items)
        yield run_from_hits(hits, str(path))

    def write(self, items: Iterator[Run], path: Path, conversion: Conversion) -> int:
        run = next(items)
        drop_tag(run, conversion)
        return write_rows(((query, document, runs.format_score(score)) for query, document, _, score in iter_hits(run)), path)


class TevatronTexts(Format):
    """JSON lines {"docid", "title", "text"}, or {"query_id", "query"}: Tevatron's corpora and queries. `side`: document or query."""

    kind = "texts"

    def __init__(self, *, side: str = "document") -> None:
        if side not in _SIDES:
            raise UsageError(f"tevatron-texts:side={side}: expected {' or '.join(_SIDES)}")
        self._side = side

    def read(self, path: Path, conversion: Conversion) -> Iterator[Text]:
        return read_unique_texts(path, conversion)

    def write(self, items: Iterator[Text], path: Path, conversion: Conversion) -> int:
        return write_json_lines((self._to_record(text, conversion) for text in items), path)

    def _to_record(self, text: Text, conversion: Conversion) -> dict[str, Any]:
        where = f"text {text.id!r}"
        if text.url:
            conversion.drop_or_refuse(where, "field 'url'")
        if self._side == "document":
            if text.answers:
                conversion.drop_or_refuse(where, "field 'answers'")
            return {"docid": text.id, "title": text.title, "text": text.text}
        if text.title:
            conversion.drop_or_refuse(where, "field 'title'")
        return {"query_id": text.id, "query": title_and_text(text), **({"answers": list(text.answers)} if text.answers else {})}


def _collect_scores(record: dict[str, Any], where: str, conversion: Conversion) -> dict[str, Any]:
    """The record with the scores of its passages moved into lists of scores."""
    converted = dict(record)
    sides = {side: record.get(f"{side}_passages") or [] for side in ("positive", "negative")}
    all_passages = [passage for passages in sides.values() for passage in passages if isinstance(passage, dict)]
    for passage in all_passages:
        conversion.drop_unread_fields(where, passage, ("docid", "title", "text", "score"))
    if any("score" in passage for passage in all_passages):
        if not all("score" in passage for passage in all_passages):
            raise DataError(f"{where}: only some passages have a score; expected all or none", code="scores-miscounted")
        converted |= {f"{side}_scores": [passage["score"] for passage in passages] for side, passages in sides.items()}
    return converted


def _to_record(example: Example, conversion: Conversion) -> dict[str, Any]:
    where = f"query {example.query_id!r}"
    query, passages = conversion.look_up_texts(example, where)
    has_url = any(passage.url for passage in passages.values())
    conversion.drop_nonempty(where, {"field 'negative_provenance'": example.provenance, "field 'url'": has_url})
    teacher_scores = example.teacher_scores
    record: dict[str, Any] = {"query_id": example.query_id, "query": title_and_text(query)}
    if query.answers:
        record["answers"] = list(query.answers)
    for side, ids in (("positive", example.positive_ids), ("negative", example.negative_ids)):
        record[f"{side}_passages"] = [
            {"docid": document, "title": passages[document].title, "text": passages[document].text}
            | ({"score": float(runs.format_score(teacher_scores[document]))} if teacher_scores else {})
            for document in ids
        ]
    return record


def _inline_texts(example: Example, query_text: Any, conversion: Conversion) -> Example:
    """The example with this query text and the passages of the corpus."""
    where = f"query {example.query_id!r}"
    ids = (*example.positive_ids, *example.negative_ids)
    passages = tuple(look_up_text(conversion.corpus, document, "--corpus", where, conversion.target) for document in ids)
    return replace(example, query=Text(example.query_id, str(query_text)), passages=passages)


def _to_record_by_id(example: Example, conversion: Conversion) -> dict[str, Any]:
    where = f"query {example.query_id!r}"
    query = example.query or look_up_text(conversion.queries, example.query_id, "--queries", where, conversion.target)
    example = conversion.strip_texts(example, where)
    losses = {"field 'negative_provenance'": example.provenance, "a teacher's scores": example.positive_scores}
    conversion.drop_nonempty(where, losses | {"field 'answers'": query.answers})
    return {
        "query_id": example.query_id,
        "query_text": title_and_text(query),
        "positive_document_ids": list(example.positive_ids),
        "negative_document_ids": list(example.negative_ids),
    }
