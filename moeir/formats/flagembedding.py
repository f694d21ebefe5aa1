"""FlagEmbedding's training examples."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from moeir.errors import DataError
from moeir.formats.base import Conversion, Format, one_string, whole
from moeir.formats.reading import digest, is_named, json_lines, strings, write_json_lines
from moeir.records import examples, runs
from moeir.records.examples import Example
from moeir.records.texts import Text

_IDS = ("query_id", "pos_id", "neg_id")
_FIELDS = ("query", "pos", "neg", "pos_scores", "neg_scores", *_IDS)


class Flagembedding(Format):
    """JSON lines {"query", "pos", "neg"} of texts, with teacher scores `pos_scores` and `neg_scores`: FlagEmbedding's.

    `ids` keeps ids in `query_id`, `pos_id` and `neg_id`, which its trainer ignores; without them a text's id is its digest.
    """

    kind: ClassVar[str] = "examples"

    def __init__(self, *, ids: bool = True) -> None:
        self._ids = ids

    def read(self, path: Path, conversion: Conversion) -> Iterator[Example]:
        seen_ids: set[str] = set()
        for where, record in json_lines(path):
            if not isinstance(record, dict) or not isinstance(record.get("query"), str):
                raise DataError(f"{where}: an object with query, pos and neg was expected")
            conversion.lose_fields(where, record, _FIELDS)
            example = _parsed(record, where, conversion)
            if example.query_id in seen_ids:
                raise DataError(f"{where}: duplicate query; expected one line per query")
            seen_ids.add(example.query_id)
            yield example

    def write(self, items: Iterator[Example], path: Path, conversion: Conversion) -> int:
        return write_json_lines((self._record(example, conversion) for example in items), path)

    def _record(self, example: Example, conversion: Conversion) -> dict[str, Any]:
        where = f"query {example.query_id!r}"
        example = conversion.with_texts(example, where)
        assert example.query is not None
        if example.provenance:
            conversion.lose(where, "field 'negative_provenance'")
        if example.query.answers:
            conversion.lose(where, "field 'answers'")
        passages = {passage.id: passage for passage in example.passages}
        record: dict[str, Any] = {"query": whole(example.query)}
        for side, ids in (("pos", example.positive_ids), ("neg", example.negative_ids)):
            record[side] = [one_string(passages[document], where, conversion) for document in ids]
        if example.positive_scores:
            record["pos_scores"] = [float(runs.score_text(score)) for score in example.positive_scores]
            record["neg_scores"] = [float(runs.score_text(score)) for score in example.negative_scores]
        if not (is_named(example.query) and all(map(is_named, example.passages))):
            if self._ids:
                ids_by_field = (example.query_id, list(example.positive_ids), list(example.negative_ids))
                record |= dict(zip(_IDS, ids_by_field, strict=True))
            else:
                conversion.lose(where, "ids")
        return record


def _parsed(record: dict[str, Any], where: str, conversion: Conversion) -> Example:
    sides = {"positive": "pos", "negative": "neg"}
    converted: dict[str, Any] = {"query": record["query"], "query_id": record.get("query_id", digest(record["query"]))}
    for side, name in sides.items():
        words = strings(record, name, where)
        ids = record.get(f"{name}_id") or [digest(text) for text in words]
        if not isinstance(ids, list) or len(ids) != len(words):
            raise DataError(f"{where}: {name}_id does not have {len(words)} entries, as many as {name}")
        converted[f"{side}_passages"] = [{"docid": document, "text": text} for document, text in zip(ids, words, strict=True)]
        if record.get(f"{name}_scores") is not None:
            converted[f"{side}_scores"] = record[f"{name}_scores"]
    _lose_copies(converted, where, conversion)
    example = examples.parsed(converted, where, provenance=False)
    return replace(example, query=Text(example.query_id, record["query"]))


def _lose_copies(record: dict[str, Any], where: str, conversion: Conversion) -> None:
    """Keep each text once: as a positive if it is on both sides."""
    seen_ids: set[Any] = set()
    for side in ("positive", "negative"):
        passages, scores = record[f"{side}_passages"], record.get(f"{side}_scores")
        unique = []
        for index, passage in enumerate(passages):
            if passage["docid"] in seen_ids:
                conversion.lose(where, "a duplicate passage")
            else:
                unique.append(index)
            seen_ids.add(passage["docid"])
        record[f"{side}_passages"] = [passages[index] for index in unique]
        if isinstance(scores, list) and len(scores) == len(passages):
            record[f"{side}_scores"] = [scores[index] for index in unique]
