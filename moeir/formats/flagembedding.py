"""FlagEmbedding's training examples."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from moeir.errors import DataError
from moeir.formats.base import PROVENANCE, Conversion, Format, flatten_title, optional_fields, title_and_text
from moeir.formats.examples import OWN_FIELDS, GroupByQuery, collect_all_fields, has_digest_id, own_fields, read_objects, text_digest
from moeir.records import examples, runs
from moeir.records.examples import Example

_ID_FIELDS = ("query_id", "pos_id", "neg_id")
_FIELDS = ("query", "pos", "neg", "pos_scores", "neg_scores", "answers", *_ID_FIELDS, *OWN_FIELDS)


class Flagembedding(Format):
    """JSON lines {"query", "pos", "neg"} of texts, with teacher scores `pos_scores` and `neg_scores`: FlagEmbedding's.

    Ids are kept in `query_id`, `pos_id` and `neg_id`, which its trainer ignores; without them a text's id is its digest. Lines of the
    same query are merged.
    """

    kind = "examples"
    keeps_fields = True

    def read(self, path: Path, conversion: Conversion) -> Iterator[Example]:
        """The examples; lines of the same query become one."""
        by_query: dict[str, list[tuple[str, Example]]] = {}
        for where, record in read_objects(path):
            example = collect_all_fields(where, record, _parse_record(record, where, conversion), _FIELDS, conversion)
            by_query.setdefault(example.query_id, []).append((where, example))
        for examples_of_query in by_query.values():
            yield examples_of_query[0][1] if len(examples_of_query) == 1 else _merge_lines(examples_of_query, conversion)

    def to_record(self, item: Example, conversion: Conversion) -> dict[str, Any]:
        where = f"query {item.query_id!r}"
        query, passages = conversion.look_up_texts(item, [])
        record: dict[str, Any] = {"query": title_and_text(query)}
        for side, ids in (("pos", item.positive_ids), ("neg", item.negative_ids)):
            record[side] = [flatten_title(passages[document], where, conversion) for document in ids]
        if item.positive_scores:
            record["pos_scores"] = [float(runs.format_score(score)) for score in item.positive_scores]
            record["neg_scores"] = [float(runs.format_score(score)) for score in item.negative_scores]
        if not all(map(has_digest_id, (query, *passages.values()))):
            record |= dict(zip(_ID_FIELDS, (item.query_id, list(item.positive_ids), list(item.negative_ids)), strict=True))
        own = own_fields(replace(item, positive_scores=()))
        return conversion.add_fields(where, record | optional_fields(query) | own, item.extra)


def _parse_record(record: dict[str, Any], where: str, conversion: Conversion) -> Example:
    if not isinstance(query := record.get("query"), str):
        raise DataError(f"{where}: an object with query, pos and neg was expected")
    query_id, has_scores = record.get("query_id"), record.get("pos_scores") or record.get("neg_scores")
    converted: dict[str, Any] = {"query": query, "query_id": text_digest(query) if query_id in (None, "") else query_id}
    for side, name in {"positive": "pos", "negative": "neg"}.items():
        words = _parse_string_list(record, name, where)
        ids = record.get(f"{name}_id") or [text_digest(text) for text in words]
        if not isinstance(ids, list) or len(ids) != len(words):
            raise DataError(f"{where}: {name}_id does not have {len(words)} entries, as many as {name}")
        converted[f"{side}_passages"] = [{"docid": document, "text": text} for document, text in zip(ids, words, strict=True)]
        if has_scores and record.get(f"{name}_scores") is not None:  # its miner writes empty lists
            converted[f"{side}_scores"] = record[f"{name}_scores"]
    converted |= {name: record[name] for name in ("negative_provenance", "answers") if name in record}
    _drop_duplicates(converted, where, conversion)
    return examples.parse_example(converted, where, provenance=True)


def _merge_lines(examples_of_query: list[tuple[str, Example]], conversion: Conversion) -> Example:
    grouped = GroupByQuery(conversion)
    for where, example in examples_of_query:
        conversion.drop_nonempty(where, {PROVENANCE: example.provenance, "the other fields of a repeated query": example.extra})
        passages = {passage.id: passage for passage in example.passages}
        for positive in example.positive_ids:
            negatives = map(passages.__getitem__, example.negative_ids)
            grouped.add(where, example.query or example.query_id, passages[positive], negatives, example.teacher_scores)
    return next(grouped.examples())


def _drop_duplicates(record: dict[str, Any], where: str, conversion: Conversion) -> None:
    """Keep each text once: as a positive if it is on both sides."""
    seen_ids: set[Any] = set()
    for side in ("positive", "negative"):
        passages = record[f"{side}_passages"]
        lists = [name for name in (f"{side}_scores", f"{side}_provenance") if isinstance(record.get(name), list)]
        unique = []
        for index, passage in enumerate(passages):
            if isinstance(passage["docid"], list | dict):
                raise DataError(f"{where}: an id is not a string: {str(passage['docid'])[:80]}")
            if passage["docid"] in seen_ids:
                conversion.drop_or_refuse(where, "a duplicate passage")
            else:
                unique.append(index)
            seen_ids.add(passage["docid"])
        record[f"{side}_passages"] = [passages[index] for index in unique]
        for name in lists:
            if len(record[name]) == len(passages):
                record[name] = [record[name][index] for index in unique]


def _parse_string_list(record: dict[str, Any], name: str, where: str) -> list[str]:
    """A field that is a list of strings; empty if the field is absent."""
    values = record.get(name)
    if values is None:
        return []
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise DataError(f"{where}: {name} is not a list of strings")
    return values
