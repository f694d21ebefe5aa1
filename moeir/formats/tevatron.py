"""Tevatron's training examples with inline texts."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from moeir.errors import DataError
from moeir.formats.base import Conversion, Format, title_and_text
from moeir.formats.row_files import read_json_lines, write_json_lines
from moeir.records import examples, runs
from moeir.records.examples import Example

_FIELDS = ("query_id", "query", "answers", "positive_passages", "negative_passages")
_SIDES = ("positive", "negative")


class Tevatron(Format):
    """JSON lines {"query_id", "query", "positive_passages", "negative_passages"} with texts and optional teacher `score`s: Tevatron's."""

    kind: ClassVar[str] = "examples"

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


def _collect_scores(record: dict[str, Any], where: str, conversion: Conversion) -> dict[str, Any]:
    """The record with the scores of its passages moved into lists of scores."""
    converted = dict(record)
    sides = {side: record.get(f"{side}_passages") or [] for side in _SIDES}
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
    example = conversion.inline_texts(example, where)
    assert example.query is not None
    if example.provenance:
        conversion.drop_or_refuse(where, "field 'negative_provenance'")
    if any(passage.url for passage in example.passages):
        conversion.drop_or_refuse(where, "field 'url'")
    passages, teacher_scores = {passage.id: passage for passage in example.passages}, example.teacher_scores
    record: dict[str, Any] = {"query_id": example.query_id, "query": title_and_text(example.query)}
    if example.query.answers:
        record["answers"] = list(example.query.answers)
    for side, ids in (("positive", example.positive_ids), ("negative", example.negative_ids)):
        record[f"{side}_passages"] = [
            {"docid": document, "title": passages[document].title, "text": passages[document].text}
            | ({"score": float(runs.format_score(teacher_scores[document]))} if teacher_scores else {})
            for document in ids
        ]
    return record
