"""Checks of training examples: faulty lines, documents on both sides, unknown ids, and queries of the dev set."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from moeir.data_checks.findings import FileFindings
from moeir.data_checks.texts import SeenTexts, fingerprint
from moeir.data_checks.tolerant_lines import read_tolerantly
from moeir.errors import DataError
from moeir.records import dpr, examples, texts
from moeir.records.examples import Example


@dataclass
class CheckContext:
    """The texts that examples refer to, None if unknown, and the dev queries, which they must not contain."""

    queries: SeenTexts | None = None
    documents: SeenTexts | None = None
    dev_queries: SeenTexts = field(default_factory=SeenTexts)


def check_examples(file: FileFindings, context: CheckContext, foreign: Iterator[Example] | None) -> None:
    """Check examples: each line of a file, a DPR array or `foreign`, the examples of another format, up to the first fault of its form."""
    seen_ids: set[str] = set()
    for where, content in _locate_examples(file, foreign):
        try:
            record = texts.parse_json(content, where) if isinstance(content, str) else content
            example = examples.parse_example(record, where, provenance=True)
        except DataError as problem:
            file.add_error(problem)
            continue
        if example.query_id in seen_ids:
            file.add(where, "duplicate", f"query {example.query_id!r} occurs on an earlier line too")
            continue
        seen_ids.add(example.query_id)
        _check_example(example, where, file, context)


def _locate_examples(file: FileFindings, foreign: Iterator[Example] | None) -> Iterator[tuple[str, Any]]:
    """The location of each example, and its line or record."""
    numbered = iter(()) if foreign is not None else read_tolerantly(file)
    first = next(((number, line) for number, line in numbered if line.strip()), (0, ""))
    if foreign is None and not dpr.is_array(first[1]):
        yield from ((f"{file.name}:{number}", line) for number, line in chain([first], numbered) if line.strip())
        return
    try:
        if foreign is not None:
            yield from ((file.name, examples.example_to_record(example)) for example in foreign)
        else:
            yield from dpr.read_example_records(file.name, chain([first], numbered))
    except DataError as problem:
        file.add_error(problem)


def _check_example(example: Example, where: str, file: FileFindings, context: CheckContext) -> None:
    query, fingerprints = example.query_id, {} if context.queries is None else context.queries.by_id
    if example.query is None:
        file.check_references(where, query, *example.positive_ids, *example.negative_ids)
    key = fingerprints.get(query) if example.query is None else fingerprint(example.query.content)
    if query in context.dev_queries.by_id or key in context.dev_queries.by_text:
        leak = "its id" if query in context.dev_queries.by_id else "its text"
        file.add(where, "leaked-query", f"query {query!r} is evaluated: {leak} is among the dev queries")
    known = {} if context.documents is None else context.documents.by_id
    keys = {passage.id: fingerprint(passage.content) for passage in example.passages} or known
    positive_texts = {keys[name] for name in example.positive_ids if name in keys}
    if twin := next((name for name in example.negative_ids if keys.get(name) in positive_texts), None):
        file.add(where, "positive-among-negatives", f"document {twin!r} has the text of a positive of query {query!r}")
