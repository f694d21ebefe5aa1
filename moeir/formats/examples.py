"""Our own training examples: ids, or texts within."""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from moeir.formats.base import Conversion, Format
from moeir.records import examples
from moeir.records.examples import Example


class Examples(Format):
    """JSON lines {"query_id", "positive_ids", "negative_ids"}, or inline texts as Tevatron's; scores, provenance: moeir's examples."""

    kind: ClassVar[str] = "examples"

    def read(self, path: Path, conversion: Conversion) -> Iterator[Example]:
        return examples.read_examples(path)

    def write(self, items: Iterator[Example], path: Path, conversion: Conversion) -> int:
        count = 0

        def counted() -> Iterator[Example]:
            nonlocal count
            for example in items:
                count += 1
                if any(passage.url for passage in example.passages):
                    conversion.drop_or_refuse(f"query {example.query_id!r}", "field 'url'")
                yield example

        examples.write_examples(counted(), path)
        return count
