"""moeir's training examples; parts shared by formats of examples: ids for texts without one, and fields that are not read."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from moeir.formats.base import Conversion, Format, title_and_text, unread_fields
from moeir.records import examples, texts
from moeir.records.examples import Example
from moeir.records.texts import Text

OWN_FIELDS = ("positive_scores", "negative_scores", "negative_provenance")  # of moeir's examples, which other tools do not read
IDS_AND_PASSAGES = ("query_id", *(f"{side}_{what}" for side in ("positive", "negative") for what in ("ids", "document_ids", "passages")))


class Examples(Format):
    """JSON lines {"query_id", "positive_ids", "negative_ids"}, or inline texts as Tevatron's; scores, provenance: moeir's examples."""

    kind = "examples"

    def read(self, path: Path, conversion: Conversion) -> Iterator[Example]:
        for where, record, example in examples.read_examples_with_records(path):
            has_query_text = "positive_passages" in record or conversion.queries is not None
            known = (*IDS_AND_PASSAGES, *OWN_FIELDS, *(("query", "query_text", "answers") if has_query_text else ()))
            yield collect_all_fields(where, record, example, known)

    def to_record(self, item: Example, conversion: Conversion) -> dict[str, Any]:
        return conversion.add_fields(f"query {item.query_id!r}", examples.example_to_record(item), item.extra)


def collect_all_fields(where: str, record: Mapping[str, Any], example: Example, known: Iterable[str]) -> Example:
    """The example with the fields, and its passages with the fields, that are not read."""
    by_id: dict[str, dict[str, Any]] = {}
    for passage in (passage for side in ("positive_passages", "negative_passages") for passage in record.get(side) or ()):
        if extra := unread_fields(passage, (*texts.KNOWN_FIELDS, *["score"] * bool(example.positive_scores))):
            by_id[texts.parse_text(passage, where).id] = extra
    if by_id:
        example = replace(example, passages=tuple(replace(passage, extra=by_id.get(passage.id)) for passage in example.passages))
    return replace(example, extra=unread_fields(record, known))


def text_digest(text: str) -> str:
    """An id for a text without one: equal texts get equal ids.

    >>> text_digest("An owl.")
    '359b67d612d5691c'
    """
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def has_digest_id(text: Text) -> bool:
    """Whether a text's id is its digest, so that dropping it loses nothing."""
    return text.id == text_digest(title_and_text(text))
