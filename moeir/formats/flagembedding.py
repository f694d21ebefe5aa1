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
    """JSON lines {"query", "pos", "neg"} of texts, a teacher's `pos_scores` and `neg_scores`: FlagEmbedding's.

    `ids` keeps ids in `query_id`, `pos_id` and `neg_id`, which its trainer does not read; without them a text is known by its digest.
    """

    kind: ClassVar[str] = "examples"

    def __init__(self, *, ids: bool = True) -> None:
        self._ids = ids

    def read(self, path: Path, conversion: Conversion) -> Iterator[Example]:
        known: set[str] = set()
        for where, record in json_lines(path):
            if not isinstance(record, dict) or not isinstance(record.get("query"), str):
                raise DataError(f"{where}: an object with query, pos and neg was expected")
            conversion.lose_fields(where, record, _FIELDS)
            example = _parsed(record, where, conversion)
            if example.query_id in known:
                raise DataError(f"{where}: the query stands on an earlier line too; one line per query was expected")
            known.add(example.query_id)
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
                every = (example.query_id, list(example.positive_ids), list(example.negative_ids))
                record |= dict(zip(_IDS, every, strict=True))
            else:
                conversion.lose(where, "ids")
        return record


def _parsed(record: dict[str, Any], where: str, conversion: Conversion) -> Example:
    sides = {"positive": "pos", "negative": "neg"}
    fresh: dict[str, Any] = {"query": record["query"], "query_id": record.get("query_id", digest(record["query"]))}
    for side, name in sides.items():
        words = strings(record, name, where)
        ids = record.get(f"{name}_id") or [digest(text) for text in words]
        if not isinstance(ids, list) or len(ids) != len(words):
            raise DataError(f"{where}: {name}_id has not as many entries as {name}, {len(words)}")
        fresh[f"{side}_passages"] = [{"docid": one, "text": text} for one, text in zip(ids, words, strict=True)]
        if record.get(f"{name}_scores") is not None:
            fresh[f"{side}_scores"] = record[f"{name}_scores"]
    _lose_copies(fresh, where, conversion)
    example = examples.parsed(fresh, where, provenance=False)
    return replace(example, query=Text(example.query_id, record["query"]))


def _lose_copies(fresh: dict[str, Any], where: str, conversion: Conversion) -> None:
    """A text that stands twice, or on both sides, counts once: as a positive if it is one."""
    met: set[Any] = set()
    for side in ("positive", "negative"):
        passages, scores = fresh[f"{side}_passages"], fresh.get(f"{side}_scores")
        kept = []
        for place, passage in enumerate(passages):
            if passage["docid"] in met:
                conversion.lose(where, "a passage that stands twice")
            else:
                kept.append(place)
            met.add(passage["docid"])
        fresh[f"{side}_passages"] = [passages[place] for place in kept]
        if isinstance(scores, list) and len(scores) == len(passages):
            fresh[f"{side}_scores"] = [scores[place] for place in kept]
