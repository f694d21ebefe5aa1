"""Checks of training examples: faulty lines, documents on both sides, unknown ids, and queries of the dev set."""

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from moeir.data_checks.findings import FileFindings
from moeir.data_checks.texts import SeenTexts, fingerprint
from moeir.data_checks.tolerant_lines import read_tolerantly
from moeir.errors import DataError
from moeir.records import dpr, examples, texts
from moeir.records.examples import Example

_SIDE_FIELDS = {side: (f"{side}_passages", f"{side}_ids", f"{side}_document_ids") for side in ("positive", "negative")}
_REPAIRABLE = ("positive-among-negatives", "duplicate-passage")


@dataclass
class CheckContext:
    """Context of examples: known ids (None if unknown), a fingerprint of each query text and of documents with the text of another, and the
    dev queries."""

    queries: Collection[str] | None = None
    documents: Collection[str] | None = None
    twins: Mapping[str, int] = field(default_factory=dict)
    fingerprints: Mapping[str, int] = field(default_factory=dict)
    dev_queries: SeenTexts = field(default_factory=SeenTexts)


def check_examples(file: FileFindings, context: CheckContext, foreign: Iterator[Example] | None = None) -> Iterator[str]:
    """Lines of a repaired copy; a DPR array becomes lines with inline texts, and so do `foreign`, the examples of another format."""
    seen_ids: set[str] = set()
    for number, record, line in _read_records(file) if foreign is None else _to_records(file, foreign):
        repaired = _repair_record(record, number, file)
        if repaired is None:
            continue
        new_record, example = repaired
        if example.query_id in seen_ids:
            file.add(number, "duplicate-id", f"query {example.query_id!r} occurs on an earlier line too")
            continue
        seen_ids.add(example.query_id)
        if _is_rejected(example, number, file, context):
            continue
        if example.query is None and context.documents is not None:
            pruned = _drop_unknown_documents(new_record, example, number, file, context.documents)
            if pruned is None:
                continue
            new_record = pruned
        keys = {passage.id: fingerprint(passage.content) for passage in example.passages} or context.twins
        positive_texts = {keys[name] for name in example.positive_ids if name in keys}
        if twins := [name for name in example.negative_ids if keys.get(name) in positive_texts]:
            problem = f"document {twins[0]!r} has the text of a positive of query {example.query_id!r}"
            file.add(number, "positive-text-among-negatives", problem)
            new_record = _prune(new_record, _is_none_of(twins))
        if not example.negative_ids:
            file.add(number, "no-negatives", f"query {example.query_id!r} has no negative")
        yield line if new_record is record and line is not None else json.dumps(new_record, ensure_ascii=False)


def _to_records(file: FileFindings, foreign: Iterator[Example]) -> Iterator[tuple[int | None, Any, None]]:
    """Records of examples of another format, up to its first fault."""
    try:
        yield from ((None, examples.example_to_record(example), None) for example in foreign)
    except DataError as problem:
        file.add_error(problem)


def _read_records(file: FileFindings) -> Iterator[tuple[int | None, Any, str | None]]:
    """Line number, record, and its line if the line has this record only."""
    numbered_lines = read_tolerantly(file)
    first = next(numbered_lines, None)
    if first is None:
        return
    numbered_lines = chain([first], numbered_lines)
    if not dpr.is_array(first[1]):
        for number, line in numbered_lines:
            try:
                yield number, texts.parse_json(line, f"{file.name}:{number}"), line
            except DataError as problem:
                file.add_error(problem)
        return
    try:
        for where, record in dpr.read_example_records(file.name, numbered_lines):
            yield int(where.rpartition(":")[2]), record, None
    except DataError as problem:
        file.add_error(problem)


def _repair_record(record: Any, number: int | None, file: FileFindings) -> tuple[dict[str, Any], Example] | None:
    """A readable record, unchanged or without repeated documents; None if it cannot be repaired."""
    new_record = record
    for _ in range(3):  # a document on both sides, a repeated document, then the repaired record
        try:
            return new_record, examples.parse_example(new_record, f"{file.name}:{number}", provenance=True)
        except DataError as problem:
            file.add_error(problem)
            if problem.code not in _REPAIRABLE:
                return None
            new_record = _prune(new_record, _is_first_occurrence(new_record))
    return None


def _is_first_occurrence(record: dict[str, Any]) -> Callable[[str, str], bool]:
    """Predicate: a document occurs for the first time on its side, and a negative is not a positive."""
    known: set[tuple[str, str]] = set()

    def wanted(side: str, document: str) -> bool:
        fresh = (side, document) not in known and ("positive", document) not in known
        known.add((side, document))
        return fresh

    return wanted


def _is_none_of(negatives: Collection[str]) -> Callable[[str, str], bool]:
    """Predicate: a document is a positive, or none of these negatives."""
    return lambda side, document: side == "positive" or document not in negatives


def _prune(record: dict[str, Any], wanted: Callable[[str, str], bool]) -> dict[str, Any]:
    """A record with the wanted documents and their scores and provenance."""
    copy = dict(record)
    for side, names in _SIDE_FIELDS.items():
        name = next((one for one in names if one in record), None)
        if name is None:
            continue
        ids = (texts.parse_text(document, "").id if isinstance(document, dict) else str(document) for document in record[name])
        keep_flags = [wanted(side, document) for document in ids]
        for field_name in (name, f"{side}_scores", f"{side}_provenance"):
            if isinstance(values := record.get(field_name), list) and len(values) == len(keep_flags):
                copy[field_name] = [value for value, keep in zip(values, keep_flags, strict=True) if keep]
    return copy


def _is_rejected(example: Example, number: int | None, file: FileFindings, context: CheckContext) -> bool:
    query = example.query_id
    if example.query is None and context.queries is not None and query not in context.queries:
        file.add(number, "unknown-query", f"query {query!r} is not among the queries")
        return True
    key = context.fingerprints.get(query) if example.query is None else fingerprint(example.query.content)
    if query in context.dev_queries.ids or key in context.dev_queries.fingerprints:
        leak = "its id" if query in context.dev_queries.ids else "its text"
        file.add(number, "leaked-query", f"query {query!r} is evaluated: {leak} is among the dev queries")
        return True
    return False


def _drop_unknown_documents(
    record: dict[str, Any], example: Example, number: int | None, file: FileFindings, documents: Collection[str]
) -> dict[str, Any] | None:
    """The record without documents that the corpus lacks; None if no positive is left."""
    absent = {document for document in (*example.positive_ids, *example.negative_ids) if document not in documents}
    if not absent:
        return record
    first = next(document for document in (*example.positive_ids, *example.negative_ids) if document in absent)
    more = f" (and {len(absent) - 1} more)" if len(absent) > 1 else ""
    file.add(number, "unknown-document", f"document {first!r}{more} of query {example.query_id!r} is not in the corpus")
    if all(document in absent for document in example.positive_ids):
        return None
    return _prune(record, lambda _, document: document not in absent)
