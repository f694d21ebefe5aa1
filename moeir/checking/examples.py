"""Checks of training examples: faulty lines, documents on both sides, unknown ids, and queries of the dev set."""

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from moeir.checking.findings import Findings
from moeir.checking.kinds import of_message
from moeir.checking.reading import numbered
from moeir.checking.texts import Known
from moeir.errors import DataError
from moeir.records import dpr, examples, lines, texts
from moeir.records.examples import Example

_SIDES = {side: (f"{side}_passages", f"{side}_ids", f"{side}_document_ids") for side in ("positive", "negative")}
_MENDABLE = ("positive-among-negatives", "duplicate-passage")


@dataclass
class Around:
    """Context of examples: known ids (None if unknown), a fingerprint of each query text, and the dev queries."""

    queries: Collection[str] | None = None
    documents: Collection[str] | None = None
    signs: Mapping[str, int] = field(default_factory=dict)
    held: Known = field(default_factory=Known)


def walk(path: Path | str, findings: Findings, context: Around) -> Iterator[str]:
    """Lines of a repaired copy; a DPR array becomes lines with inline texts."""
    name, seen_ids = lines.label(path), set[str]()
    for number, record, line in _records(path, name, findings):
        repaired = _mended(record, name, number, findings)
        if repaired is None:
            continue
        new_record, example = repaired
        if example.query_id in seen_ids:
            findings.add(name, number, "duplicate-id", f"query {example.query_id!r} occurs on an earlier line too")
            continue
        seen_ids.add(example.query_id)
        if _refused(example, name, number, findings, context):
            continue
        if example.query is None and context.documents is not None:
            pruned = _without_unknown(new_record, example, name, number, findings, context.documents)
            if pruned is None:
                continue
            new_record = pruned
        if not example.negative_ids:
            findings.add(name, number, "no-negatives", f"query {example.query_id!r} has no negative")
        yield line if new_record is record and line is not None else json.dumps(new_record, ensure_ascii=False)


def _records(path: Path | str, name: str, findings: Findings) -> Iterator[tuple[int, Any, str | None]]:
    """Line number, record, and its line if the line has this record only."""
    numbered_lines = numbered(path, findings)
    first = next(numbered_lines, None)
    if first is None:
        return
    numbered_lines = chain([first], numbered_lines)
    if not dpr.is_array(first[1]):
        for number, line in numbered_lines:
            try:
                yield number, texts.loaded(line, f"{name}:{number}"), line
            except DataError as problem:
                findings.refused(name, number, problem)
        return
    number = first[0]
    try:
        for position, (where, entry) in enumerate(dpr.entries(name, numbered_lines)):
            number = int(where.rpartition(":")[2])
            if (record := dpr.example(entry, position, where)) is not None:
                yield number, record, None
    except DataError as problem:
        findings.refused(name, number, problem)


def _mended(record: Any, name: str, number: int, findings: Findings) -> tuple[dict[str, Any], Example] | None:
    """A readable record, unchanged or without repeated documents; None if it cannot be repaired."""
    where, new_record = f"{name}:{number}", record
    for _ in range(3):  # a document on both sides, a repeated document, then the repaired record
        try:
            return new_record, examples.parsed(new_record, where, provenance=True)
        except DataError as problem:
            findings.refused(name, number, problem)
            if of_message(str(problem)) not in _MENDABLE:
                return None
            new_record = _pruned(new_record, _once(new_record))
    return None


def _once(record: dict[str, Any]) -> Callable[[str, str], bool]:
    """Predicate: a document occurs for the first time on its side, and a negative is not a positive."""
    known: set[tuple[str, str]] = set()

    def wanted(side: str, document: str) -> bool:
        fresh = (side, document) not in known and ("positive", document) not in known
        known.add((side, document))
        return fresh

    return wanted


def _pruned(record: dict[str, Any], wanted: Callable[[str, str], bool]) -> dict[str, Any]:
    """A record with the wanted documents and their scores and provenance."""
    copy = dict(record)
    for side, names in _SIDES.items():
        name = next((one for one in names if one in record), None)
        if name is None:
            continue
        keep_flags = [wanted(side, _id_of(document)) for document in record[name]]
        for field_name in (name, f"{side}_scores", f"{side}_provenance"):
            if isinstance(values := record.get(field_name), list) and len(values) == len(keep_flags):
                copy[field_name] = [value for value, keep in zip(values, keep_flags, strict=True) if keep]
    return copy


def _id_of(document: Any) -> str:
    return texts.parsed(document, "").id if isinstance(document, dict) else str(document)


def _refused(example: Example, name: str, number: int, findings: Findings, context: Around) -> bool:
    query = example.query_id
    if example.query is None and context.queries is not None and query not in context.queries:
        findings.add(name, number, "unknown-query", f"query {query!r} is not among the queries")
        return True
    fingerprint = context.signs.get(query) if example.query is None else context.held.sign(example.query.content)
    if query in context.held.ids or fingerprint in context.held.contents:
        leak = "its id" if query in context.held.ids else "its text"
        findings.add(name, number, "leaked-query", f"query {query!r} is evaluated: {leak} is among the dev queries")
        return True
    return False


def _without_unknown(
    record: dict[str, Any], example: Example, name: str, number: int, findings: Findings, documents: Collection[str]
) -> dict[str, Any] | None:
    """The record without documents that the corpus lacks; None if no positive is left."""
    absent = {document for document in (*example.positive_ids, *example.negative_ids) if document not in documents}
    if not absent:
        return record
    first = next(document for document in (*example.positive_ids, *example.negative_ids) if document in absent)
    more = f" (and {len(absent) - 1} more)" if len(absent) > 1 else ""
    findings.add(name, number, "unknown-document", f"document {first!r}{more} of query {example.query_id!r} is not in the corpus")
    if all(document in absent for document in example.positive_ids):
        return None
    return _pruned(record, lambda _, document: document not in absent)
