"""sentence-transformers' labelled pairs, the training data of cross-encoders."""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from moeir.errors import DataError
from moeir.formats import row_files
from moeir.formats.base import Conversion, Format
from moeir.formats.row_files import text_with_digest_id, validate_example
from moeir.records.examples import Example
from moeir.records.texts import Text

_PASSAGE_COLUMNS = (*row_files.POSITIVE_COLUMNS, "document", "response", "text")
_LABELS = {"1": True, "1.0": True, "0": False, "0.0": False}


class Labelled(Format):
    """Columns query, passage, label (1 or 0): training pairs of sentence-transformers' cross-encoders."""

    kind: ClassVar[str] = "examples"

    def read(self, path: Path, conversion: Conversion) -> Iterator[Example]:
        queries: dict[str, Text] = {}
        sides: dict[str, dict[Text, bool]] = {}
        locations: dict[str, str] = {}
        for where, record in row_files.read_table(path):
            query, passage = (
                text_with_digest_id(row_files.first_text_column(record, names, where))
                for names in (row_files.ANCHOR_COLUMNS, _PASSAGE_COLUMNS)
            )
            conversion.drop_unread_fields(where, record, (*row_files.ANCHOR_COLUMNS, *_PASSAGE_COLUMNS, "label", "score"))
            label = _LABELS.get(str(record.get("label", record.get("score"))))
            if label is None:
                raise DataError(f"{where}: label is not 1 or 0: {record.get('label', record.get('score'))!r}", code="grade-not-a-number")
            queries.setdefault(query.id, query)
            locations.setdefault(query.id, where)
            if sides.setdefault(query.id, {}).setdefault(passage, label) is not label:
                raise DataError(f"{where}: the passage has another label on an earlier line", code="grades-disagree")
        for name, labels in sides.items():
            if not any(labels.values()):
                conversion.drop_or_refuse(locations[name], "a query without a positive")
                continue
            positives, negatives = ([text for text, label in labels.items() if label is expected] for expected in (True, False))
            ids, negative_ids = (tuple(text.id for text in side) for side in (positives, negatives))
            yield validate_example(
                Example(name, ids, negative_ids, query=queries[name], passages=(*positives, *negatives)), locations[name]
            )

    def write(self, items: Iterator[Example], path: Path, conversion: Conversion) -> int:
        def rows() -> Iterator[tuple[str, str, int]]:
            for example in items:
                row_files.drop_teacher_scores(example, conversion)
                query, positives, negatives = row_files.flatten_example(example, conversion, path)
                yield from ((query, passage, 1) for passage in positives)
                yield from ((query, passage, 0) for passage in negatives)

        return row_files.write_table(("query", "passage", "label"), rows(), path)
