"""sentence-transformers' pairs."""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from moeir.formats import columns
from moeir.formats.base import Conversion, Format
from moeir.formats.reading import Grouped, named
from moeir.records.examples import Example


class Pairs(Format):
    """Columns anchor, positive: sentence-transformers' pairs, without negatives."""

    kind: ClassVar[str] = "examples"

    def read(self, path: Path, conversion: Conversion) -> Iterator[Example]:
        grouped = Grouped(conversion)
        for where, record in columns.read(path):
            query, positive = (named(columns.text_of(record, names, where)) for names in (columns.ANCHORS, columns.POSITIVES))
            conversion.lose_fields(where, record, (*columns.ANCHORS, *columns.POSITIVES))
            grouped.add(where, query, positive, [])
        yield from grouped.examples()

    def write(self, items: Iterator[Example], path: Path, conversion: Conversion) -> int:
        def rows() -> Iterator[tuple[str, str]]:
            for example in items:
                columns.lose_scores(example, conversion)
                query, positives, negatives = columns.plain(example, conversion, path)
                if negatives:
                    conversion.lose(f"query {example.query_id!r}", "negatives")
                yield from ((query, positive) for positive in positives)

        return columns.write(("anchor", "positive"), rows(), path)
