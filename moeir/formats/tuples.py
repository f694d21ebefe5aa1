"""sentence-transformers' tuples of a positive and several negatives."""

import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import ClassVar

from moeir.formats import columns
from moeir.formats.base import Conversion, Format
from moeir.formats.reading import Grouped, named
from moeir.records.examples import Example

_NEGATIVE = re.compile("negative_[0-9]+")


class Tuples(Format):
    """Columns anchor, positive, negative_1, negative_2, …: sentence-transformers' tuples, equally many negatives per query."""

    kind: ClassVar[str] = "examples"

    def read(self, path: Path, conversion: Conversion) -> Iterator[Example]:
        grouped = Grouped(conversion)
        for where, record in columns.read(path):
            query, positive = (named(columns.text_of(record, names, where)) for names in (columns.ANCHORS, columns.POSITIVES))
            negative_columns = [name for name in record if _NEGATIVE.fullmatch(name)]
            conversion.lose_fields(where, record, [*columns.ANCHORS, *columns.POSITIVES, *negative_columns])
            grouped.add(where, query, positive, [named(columns.text_of(record, [name], where)) for name in negative_columns])
        yield from grouped.examples()

    def write(self, items: Iterator[Example], path: Path, conversion: Conversion) -> int:
        first = next(items, None)
        width = 0 if first is None else len(first.negative_ids)

        def rows() -> Iterator[tuple[str, ...]]:
            for example in chain([] if first is None else [first], items):
                columns.lose_scores(example, conversion)
                query, positives, negatives = columns.plain(example, conversion, path)
                if len(negatives) != width:
                    counts = f"{len(negatives)} negatives where the first query has {width}"
                    conversion.lose(f"query {example.query_id!r}", f"a query with another number of negatives ({counts})")
                if len(negatives) >= width:
                    yield from ((query, positive, *negatives[:width]) for positive in positives)

        return columns.write(("anchor", "positive", *(f"negative_{number}" for number in range(1, width + 1))), rows(), path)
