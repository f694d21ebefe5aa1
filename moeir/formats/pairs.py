"""sentence-transformers' training rows with named columns: JSON lines, TSV or CSV with a header, by the suffix; parquet; `hf:` sources."""

import re
from collections.abc import Iterator, Sequence
from itertools import chain, product
from pathlib import Path
from typing import Any, ClassVar

from moeir.errors import DataError, UsageError
from moeir.formats import base
from moeir.formats.base import Conversion, Format, text_digest
from moeir.records import lines, texts
from moeir.records.examples import Example, group_by_query
from moeir.records.texts import Text

ANCHOR_COLUMNS = ("anchor", "query", "question", "sentence1")
POSITIVE_COLUMNS = ("positive", "answer", "pos", "passage", "sentence2")
NEGATIVE_COLUMNS = ("negative", "neg", "negative_1")
_NEGATIVE = re.compile("neg|negative(_[0-9]+)?")
LABEL_COLUMNS = ("label", "score")
LABELLED_COLUMNS = (*POSITIVE_COLUMNS, "document", "response", "text")
LABELLED = (ANCHOR_COLUMNS, LABELLED_COLUMNS, LABEL_COLUMNS)
DELIMITERS = {".tsv": "\t", ".csv": ","}
_LABELS = {"1": True, "1.0": True, "True": True, "0": False, "0.0": False, "False": False}


class Pairs(Format):
    """Columns anchor, positive: sentence-transformers' pairs, without negatives; written as JSON lines."""

    kind = "examples"
    columns: ClassVar[tuple[str, ...]] = ("anchor", "positive")

    def read(self, path: Path, conversion: Conversion) -> Iterator[Example]:
        """Examples by query."""

        def rows() -> Iterator[tuple[str, Example]]:
            known_texts: dict[str, Text] = {}
            for where, record in read_table(path):
                columns = (ANCHOR_COLUMNS, POSITIVE_COLUMNS, *((name,) for name in record if _NEGATIVE.fullmatch(name)))
                row = [parse_text_column(record, names, where) for names in columns]
                query, *passages = (known_texts.setdefault(text.id, text) for text in row)
                positive, *negatives = (passage.id for passage in passages)
                conversion.drop_fields(where, base.unread_fields(record, chain(*columns), columns))
                yield where, Example(query.id, (positive,), tuple(negatives), query=query, passages=tuple(passages))

        return group_by_query(rows(), conversion.drop_or_refuse)

    def write(self, items: Iterator[Example], path: Path, conversion: Conversion) -> int:
        """Write the rows and return their number."""
        if _suffix(path) in DELIMITERS:
            raise UsageError(f"{path}: {conversion.target} are written as JSON lines; name a file that ends with .jsonl")
        rows = chain.from_iterable(self._to_rows(example, conversion) for example in items)
        return texts.write_json_lines((dict(zip(self.columns, row, strict=True)) for row in rows), path)

    def _to_rows(self, example: Example, conversion: Conversion) -> Iterator[tuple[str, ...]]:
        """A row of texts for each combination; fields without a column are dropped or refused."""
        where, is_pair = f"query {example.query_id!r}", len(self.columns) == 2
        query, passages = conversion.look_up_texts(example, [base.TEACHER_SCORES, base.PROVENANCE, base.ANSWERS, base.IDS])
        words = {name: base.flatten_title(passage, where, conversion) for name, passage in passages.items()}
        positives, negatives = ([words[document] for document in ids] for ids in (example.positive_ids, example.negative_ids))
        losses = {"negatives": is_pair and negatives, "a query without a negative": not is_pair and not negatives}
        conversion.drop_nonempty(where, losses)
        return product(*[[base.title_and_text(query)], positives, negatives][: len(self.columns)])


class Triplets(Pairs, Format):
    """Columns anchor, positive, negative: sentence-transformers' triplets, a row per positive and negative; also reads negative_1, …"""

    columns = ("anchor", "positive", "negative")


class Labelled(Format):
    """Columns query, passage, label: 1 for a positive, 0 for a negative; pairs of sentence-transformers' cross-encoders, read only."""

    kind = "examples"

    def read(self, path: Path, conversion: Conversion) -> Iterator[Example]:
        queries = dict[Text, dict[Text, bool]]()
        for where, record in read_table(path):
            query, passage = (parse_text_column(record, names, where) for names in (ANCHOR_COLUMNS, LABELLED_COLUMNS))
            conversion.drop_fields(where, base.unread_fields(record, chain(*LABELLED), LABELLED))
            value = record.get("label", record.get("score"))
            if (label := _LABELS.get(str(value))) is None:
                expected = "1 is a positive, 0 a negative; a similarity is neither: choose a threshold, or write it as a teacher's score"
                raise DataError(f"{where}: label is not 1 or 0: {value!r}; {expected}")
            if queries.setdefault(query, {}).setdefault(passage, label) is not label:
                raise DataError(f"{where}: the passage has another label on an earlier line")
        for query, labels in queries.items():
            positives, negatives = ([text for text, label in labels.items() if label is side] for side in (True, False))
            if not positives:
                conversion.drop_or_refuse(f"query {query.text!r}", "a query without a positive")
                continue
            ids, negative_ids = (tuple(text.id for text in side) for side in (positives, negatives))
            yield Example(query.id, ids, negative_ids, query=query, passages=(*positives, *negatives))


def read_table(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The location of each row (file:line), and its values by column name, in column order."""
    if (delimiter := DELIMITERS.get(_suffix(path))) is None:
        yield from texts.read_objects(path)
        return
    with lines.open_lines(path) as numbered:
        rows = lines.read_csv(numbered, str(path), delimiter)
        _, header = next(rows, ("", []))
        for where, row in rows:
            if len(row) != len(header):
                raise DataError(f"{where}: {len(header)} columns expected ({', '.join(header)}), found {len(row)}")
            yield where, dict(zip(header, row, strict=True))


def _suffix(path: Path) -> str:
    return lines.strip_compression_suffix(path).suffix.lower()


def parse_text_column(record: dict[str, Any], names: Sequence[str], where: str) -> Text:
    """The text of the first column of `names` that the row has, with its digest as id."""
    name = next((column for column in names if column in record), None)
    if name is None:
        raise DataError(f"{where}: no text column {' or '.join(names)} among {', '.join(record)}")
    text = texts.parse_string(record[name], f"{where}: {name}")
    return Text(text_digest(text), text)
