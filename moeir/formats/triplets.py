"""sentence-transformers' triplets."""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from moeir.formats import row_files
from moeir.formats.base import Conversion, Format
from moeir.formats.row_files import GroupByQuery, text_with_digest_id
from moeir.records.examples import Example

NEGATIVE_COLUMNS = ("negative", "neg", "negative_1")


class Triplets(Format):
    """Columns anchor, positive, negative: sentence-transformers' triplets, one row per pair of positive and negative."""

    kind: ClassVar[str] = "examples"

    def read(self, path: Path, conversion: Conversion) -> Iterator[Example]:
        grouped = GroupByQuery(conversion)
        for where, record in row_files.read_table(path):
            names = (row_files.ANCHOR_COLUMNS, row_files.POSITIVE_COLUMNS, NEGATIVE_COLUMNS)
            query, positive, negative = (
                text_with_digest_id(row_files.first_text_column(record, columns_of_field, where)) for columns_of_field in names
            )
            conversion.drop_unread_fields(where, record, [name for columns_of_field in names for name in columns_of_field])
            grouped.add(where, query, positive, [negative])
        yield from grouped.examples()

    def write(self, items: Iterator[Example], path: Path, conversion: Conversion) -> int:
        def rows() -> Iterator[tuple[str, str, str]]:
            for example in items:
                row_files.drop_teacher_scores(example, conversion)
                query, positives, negatives = row_files.flatten_example(example, conversion, path)
                if not negatives:
                    conversion.drop_or_refuse(f"query {example.query_id!r}", "a query without a negative")
                yield from ((query, positive, negative) for positive in positives for negative in negatives)

        return row_files.write_table(("anchor", "positive", "negative"), rows(), path)
