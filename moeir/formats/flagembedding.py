"""FlagEmbedding's training examples."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from moeir.errors import DataError
from moeir.formats.base import Conversion, Format, flatten_title, title_and_text
from moeir.formats.examples import has_digest_id, text_digest
from moeir.formats.row_files import read_json_lines, write_json_lines
from moeir.records import examples, runs
from moeir.records.examples import Example
from moeir.records.texts import Text

_ID_FIELDS = ("query_id", "pos_id", "neg_id")
_FIELDS = ("query", "pos", "neg", "pos_scores", "neg_scores", *_ID_FIELDS)


class Flagembedding(Format):
    """JSON lines {"query", "pos", "neg"} of texts, with teacher scores `pos_scores` and `neg_scores`: FlagEmbedding's.

    `ids` keeps ids in `query_id`, `pos_id` and `neg_id`, which its trainer ignores; without them a text's id is its digest.
    """

    kind = "examples"

    def __init__(self, *, ids: bool = True) -> None:
        self._ids = ids

    def read(self, path: Path, conversion: Conversion) -> Iterator[Example]:
        seen_ids: set[str] = set()
        for where, record in read_json_lines(path):
            if not isinstance(record, dict) or not isinstance(record.get("query"), str):
                raise DataError(f"{where}: an object with query, pos and neg was expected", code="not-an-object")
            conversion.drop_unread_fields(where, record, _FIELDS)
            example = _parse_record(record, where, conversion)
            if example.query_id in seen_ids:
                raise DataError(f"{where}: duplicate query; expected one line per query", code="duplicate-id")
            seen_ids.add(example.query_id)
            yield example

    def write(self, items: Iterator[Example], path: Path, conversion: Conversion) -> int:
        return write_json_lines((self._to_record(example, conversion) for example in items), path)

    def _to_record(self, example: Example, conversion: Conversion) -> dict[str, Any]:
        where = f"query {example.query_id!r}"
        query, passages = conversion.look_up_texts(example, where)
        conversion.drop_nonempty(where, {"field 'negative_provenance'": example.provenance, "field 'answers'": query.answers})
        record: dict[str, Any] = {"query": title_and_text(query)}
        for side, ids in (("pos", example.positive_ids), ("neg", example.negative_ids)):
            record[side] = [flatten_title(passages[document], where, conversion) for document in ids]
        if example.positive_scores:
            record["pos_scores"] = [float(runs.format_score(score)) for score in example.positive_scores]
            record["neg_scores"] = [float(runs.format_score(score)) for score in example.negative_scores]
        if not (all(map(has_digest_id, (query, *passages.values())))):
            if self._ids:
                ids_by_field = (example.query_id, list(example.positive_ids), list(example.negative_ids))
                record |= dict(zip(_ID_FIELDS, ids_by_field, strict=True))
            else:
                conversion.drop_or_refuse(where, "ids")
        return record


def _parse_record(record: dict[str, Any], where: str, conversion: Conversion) -> Example:
    sides = {"positive": "pos", "negative": "neg"}
    converted: dict[str, Any] = {"query": record["query"], "query_id": record.get("query_id", text_digest(record["query"]))}
    for side, name in sides.items():
        words = _parse_string_list(record, name, where)
        ids = record.get(f"{name}_id") or [text_digest(text) for text in words]
        if not isinstance(ids, list) or len(ids) != len(words):
            raise DataError(f"{where}: {name}_id does not have {len(words)} entries, as many as {name}", code="not-a-list")
        converted[f"{side}_passages"] = [{"docid": document, "text": text} for document, text in zip(ids, words, strict=True)]
        if record.get(f"{name}_scores") is not None:
            converted[f"{side}_scores"] = record[f"{name}_scores"]
    _drop_duplicates(converted, where, conversion)
    example = examples.parse_example(converted, where, provenance=False)
    return replace(example, query=Text(example.query_id, record["query"]))


def _drop_duplicates(record: dict[str, Any], where: str, conversion: Conversion) -> None:
    """Keep each text once: as a positive if it is on both sides."""
    seen_ids: set[Any] = set()
    for side in ("positive", "negative"):
        passages, scores = record[f"{side}_passages"], record.get(f"{side}_scores")
        unique = []
        for index, passage in enumerate(passages):
            if passage["docid"] in seen_ids:
                conversion.drop_or_refuse(where, "a duplicate passage")
            else:
                unique.append(index)
            seen_ids.add(passage["docid"])
        record[f"{side}_passages"] = [passages[index] for index in unique]
        if isinstance(scores, list) and len(scores) == len(passages):
            record[f"{side}_scores"] = [scores[index] for index in unique]


def _parse_string_list(record: dict[str, Any], name: str, where: str) -> list[str]:
    """A field that is a list of strings; empty if the field is absent."""
    values = record.get(name)
    if values is None:
        return []
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise DataError(f"{where}: {name} is not a list of strings", code="not-a-list")
    return values
