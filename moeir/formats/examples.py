"""moeir's training examples; parts shared by formats of examples: ids for texts without one, and fields that are not read."""

import hashlib
from collections.abc import Iterator
from itertools import chain
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
            conversion.drop_fields(where, unread_fields(record, known))
            known = (*texts.KNOWN_FIELDS, *["score"] * bool(example.positive_scores))
            for passage in chain.from_iterable(record.get(f"{side}_passages") or () for side in ("positive", "negative")):
                conversion.drop_fields(where, unread_fields(passage, known))
            yield example

    def to_record(self, item: Example, conversion: Conversion) -> dict[str, Any]:
        return examples.example_to_record(item)


def text_digest(text: str) -> str:
    """An id for a text without one: equal texts get equal ids.

    >>> text_digest("An owl.")
    '359b67d612d5691c'
    """
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def has_digest_id(text: Text) -> bool:
    """Whether a text's id is its digest, so that dropping it loses nothing."""
    return text.id == text_digest(title_and_text(text))
