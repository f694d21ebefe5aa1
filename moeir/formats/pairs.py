"""sentence-transformers' pairs."""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from moeir.formats import row_files
from moeir.formats.base import Conversion, Format
from moeir.formats.row_files import GroupByQuery, text_with_digest_id
from moeir.records.examples import Example


class Pairs(Format):
    """Columns anchor, positive: sentence-transformers' pairs, without negatives."""

    kind: ClassVar[str] = "examples"

    def read(self, path: Path, conversion: Conversion) -> Iterator[Example]:
        grouped = GroupByQuery(conversion)
        for where, record in row_files.read_table(path):
            query, positive = (
                text_with_digest_id(row_files.first_text_column(record, names, where))
                for names in (row_files.ANCHOR_COLUMNS, row_files.POSITIVE_COLUMNS)
            )
            conversion.drop_unread_fields(where, record, (*row_files.ANCHOR_COLUMNS, *row_files.POSITIVE_COLUMNS))
            grouped.add(where, query, positive, [])
        yield from grouped.examples()

    def write(self, items: Iterator[Example], path: Path, conversion: Conversion) -> int:
        def rows() -> Iterator[tuple[str, str]]:
            for example in items:
                row_files.drop_teacher_scores(example, conversion)
                query, positives, negatives = row_files.flatten_example(example, conversion, path)
                if negatives:
                    conversion.drop_or_refuse(f"query {example.query_id!r}", "negatives")
                yield from ((query, positive) for positive in positives)

        return row_files.write_table(("anchor", "positive"), rows(), path)
