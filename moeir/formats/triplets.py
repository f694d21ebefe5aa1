"""sentence-transformers' triplets."""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from moeir.formats import columns
from moeir.formats.base import Conversion, Format
from moeir.formats.reading import Grouped, named
from moeir.records.examples import Example

NEGATIVES = ("negative", "neg", "negative_1")


class Triplets(Format):
    """Columns anchor, positive, negative: sentence-transformers' triplets, one row per pair of positive and negative."""

    kind: ClassVar[str] = "examples"

    def read(self, path: Path, conversion: Conversion) -> Iterator[Example]:
        grouped = Grouped(conversion)
        for where, record in columns.read(path):
            names = (columns.ANCHORS, columns.POSITIVES, NEGATIVES)
            query, positive, negative = (named(columns.text_of(record, columns_of_field, where)) for columns_of_field in names)
            conversion.lose_fields(where, record, [name for columns_of_field in names for name in columns_of_field])
            grouped.add(where, query, positive, [negative])
        yield from grouped.examples()

    def write(self, items: Iterator[Example], path: Path, conversion: Conversion) -> int:
        def rows() -> Iterator[tuple[str, str, str]]:
            for example in items:
                columns.lose_scores(example, conversion)
                query, positives, negatives = columns.plain(example, conversion, path)
                if not negatives:
                    conversion.lose(f"query {example.query_id!r}", "a query without a negative")
                yield from ((query, positive, negative) for positive in positives for negative in negatives)

        return columns.write(("anchor", "positive", "negative"), rows(), path)
