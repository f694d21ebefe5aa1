"""Training examples: a query, its positives, its negatives, and where each negative was found.

An example refers to its texts by id, as our own lines and Tevatron's newer ones do; the texts then come from the corpus
and the queries. Where a line carries its texts (Tevatron's `positive_passages`), the same `Example` holds them as well,
in `query` and `passages`, so that a reader of examples needs one form: ids first, texts beside them or elsewhere.
"""

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moeir.errors import DataError
from moeir.records import lines, runs, texts
from moeir.records.texts import Text

_SIDES = ("positive", "negative")


@dataclass(frozen=True, slots=True)
class Found:
    """Which run found a document, at which rank (from 1), with which score."""

    run: str
    rank: int
    score: float


@dataclass(frozen=True, slots=True)
class Example:
    """A query with its positives and negatives; `provenance` is empty or has one entry per negative."""

    query_id: str
    positive_ids: tuple[str, ...]
    negative_ids: tuple[str, ...]
    provenance: tuple[tuple[Found, ...], ...] = ()
    query: Text | None = None
    passages: tuple[Text, ...] = ()


def read(path: Path | str, *, provenance: bool = True) -> Iterator[Example]:
    """The examples of a file of JSON lines, by id or with their texts, one at a time; training has no use for `provenance`."""
    known: set[str] = set()
    name = lines.label(path)
    with lines.opened(path) as numbered:
        for number, line in numbered:
            if not line.strip():
                continue
            where = f"{name}:{number}"
            example = _parsed(texts.loaded(line, where), where, provenance=provenance)
            if example.query_id in known:
                raise DataError(f"{where}: query {example.query_id!r} stands on an earlier line too; one line per query was expected")
            known.add(example.query_id)
            yield example
    if not known:
        raise DataError(f"{name}: holds no example")


def write(examples: Iterable[Example], path: Path | str) -> None:
    """One JSON line per example: by id, or with its texts where it carries them."""
    with lines.writer(path) as output:
        output.writelines(json.dumps(_record(example), ensure_ascii=False) + "\n" for example in examples)


def _record(example: Example) -> dict[str, Any]:
    fields: dict[str, Any] = {"query_id": example.query_id}
    if example.query is None:
        fields |= {"positive_ids": list(example.positive_ids), "negative_ids": list(example.negative_ids)}
    else:
        passage = {text.id: {"docid": text.id, "title": text.title, "text": text.text} for text in example.passages}
        fields["query"] = example.query.text
        fields["positive_passages"] = [passage[document] for document in example.positive_ids]
        fields["negative_passages"] = [passage[document] for document in example.negative_ids]
    if example.provenance:
        fields["negative_provenance"] = [[_found_record(found) for found in sources] for sources in example.provenance]
    return fields


def _found_record(found: Found) -> dict[str, Any]:
    return {"run": found.run, "rank": found.rank, "score": float(runs.score_text(found.score))}


def _parsed(record: Any, where: str, *, provenance: bool) -> Example:
    if not isinstance(record, dict):
        raise DataError(f"{where}: a JSON object was expected")
    if "query_id" not in record:
        raise DataError(f"{where}: no query_id")
    query_id = texts.identifier(record["query_id"], where)
    inline = "positive_passages" in record
    passages: dict[str, Text] = {}
    if inline:
        if not isinstance(record.get("query"), str):
            raise DataError(f"{where}: no query text beside the passages: the field query is missing or not a string")
        positives, negatives = (_passage_ids(record, side, passages, where) for side in _SIDES)
    else:
        positives, negatives = (_ids(record, side, where) for side in _SIDES)
    if not positives:
        raise DataError(f"{where}: query {query_id!r} has no positive")
    both = set(positives) & set(negatives)
    if both:
        raise DataError(f"{where}: document {min(both)!r} is a positive and a negative of query {query_id!r}")
    query = Text(query_id, record["query"]) if inline else None
    found = _provenance(record, len(negatives), where) if provenance else ()
    return Example(query_id, positives, negatives, found, query, tuple(passages.values()))


def _ids(record: dict[str, Any], side: str, where: str) -> tuple[str, ...]:
    names = (f"{side}_ids", f"{side}_document_ids", f"{side}_passages")
    field = next((name for name in names if name in record), None)
    if field is None:
        raise DataError(f"{where}: no {side}s; one of {', '.join(names)} was expected")
    ids = tuple(sys.intern(texts.identifier(value, where)) for value in _list(record, field, where))
    _refuse_twice(ids, field, where)
    return ids


def _passage_ids(record: dict[str, Any], side: str, passages: dict[str, Text], where: str) -> tuple[str, ...]:
    field = f"{side}_passages"
    found = [texts.parsed(passage, f"{where}: {field}") for passage in _list(record, field, where)]
    for text in found:
        if passages.setdefault(text.id, text) != text:
            raise DataError(f"{where}: passage {text.id!r} has two texts")
    ids = tuple(text.id for text in found)
    _refuse_twice(ids, field, where)
    return ids


def _refuse_twice(ids: tuple[str, ...], field: str, where: str) -> None:
    seen: set[str] = set()
    for document in ids:
        if document in seen:
            raise DataError(f"{where}: document {document!r} stands twice in {field}")
        seen.add(document)


def _list(record: dict[str, Any], field: str, where: str) -> list[Any]:
    values = record.get(field)
    if not isinstance(values, list):
        raise DataError(f"{where}: {field} is not a list" if field in record else f"{where}: no {field}")
    return values


def _provenance(record: dict[str, Any], negatives: int, where: str) -> tuple[tuple[Found, ...], ...]:
    if "negative_provenance" not in record:
        return ()
    entries = _list(record, "negative_provenance", where)
    if len(entries) != negatives:
        raise DataError(f"{where}: {negatives} negatives, but negative_provenance has {len(entries)} entries")
    try:
        return tuple(tuple(Found(str(one["run"]), int(one["rank"]), float(one["score"])) for one in entry) for entry in entries)
    except (TypeError, KeyError, ValueError):
        raise DataError(f'{where}: negative_provenance is not a list of lists of {{"run", "rank", "score"}}') from None
