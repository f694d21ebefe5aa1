"""sentence-transformers' tuples of a positive and several negatives."""

import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import ClassVar

from moeir.formats import row_files
from moeir.formats.base import Conversion, Format
from moeir.formats.row_files import GroupByQuery, text_with_digest_id
from moeir.records.examples import Example

_NEGATIVE_COLUMN = re.compile("negative_[0-9]+")


class Tuples(Format):
    """Columns anchor, positive, negative_1, negative_2, …: sentence-transformers' tuples, equally many negatives per query."""

    kind: ClassVar[str] = "examples"

    def read(self, path: Path, conversion: Conversion) -> Iterator[Example]:
        grouped = GroupByQuery(conversion)
        for where, record in row_files.read_table(path):
            query, positive = (
                text_with_digest_id(row_files.first_text_column(record, names, where))
                for names in (row_files.ANCHOR_COLUMNS, row_files.POSITIVE_COLUMNS)
            )
            negative_columns = [name for name in record if _NEGATIVE_COLUMN.fullmatch(name)]
            conversion.drop_unread_fields(where, record, [*row_files.ANCHOR_COLUMNS, *row_files.POSITIVE_COLUMNS, *negative_columns])
            grouped.add(
                where,
                query,
                positive,
                [text_with_digest_id(row_files.first_text_column(record, [name], where)) for name in negative_columns],
            )
        yield from grouped.examples()

    def write(self, items: Iterator[Example], path: Path, conversion: Conversion) -> int:
        first = next(items, None)
        width = 0 if first is None else len(first.negative_ids)

        def rows() -> Iterator[tuple[str, ...]]:
            for example in chain([] if first is None else [first], items):
                row_files.drop_teacher_scores(example, conversion)
                query, positives, negatives = row_files.flatten_example(example, conversion, path)
                if len(negatives) != width:
                    counts = f"{len(negatives)} negatives where the first query has {width}"
                    conversion.drop_or_refuse(f"query {example.query_id!r}", f"a query with another number of negatives ({counts})")
                if len(negatives) >= width:
                    yield from ((query, positive, *negatives[:width]) for positive in positives)

        return row_files.write_table(("anchor", "positive", *(f"negative_{number}" for number in range(1, width + 1))), rows(), path)
