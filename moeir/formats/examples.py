"""moeir's training examples."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from moeir.formats.base import Conversion, Format, unread_fields
from moeir.records import examples, texts
from moeir.records.examples import Example

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
