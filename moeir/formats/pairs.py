"""sentence-transformers' training rows with named columns: JSON lines, TSV or CSV with a header, by the suffix; parquet; `hf:` sources."""

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, product
from pathlib import Path
from typing import Any

from moeir.errors import DataError
from moeir.formats import base
from moeir.formats.base import ANSWERS, PROVENANCE, TEACHER_SCORES, Conversion, Format, collapse_whitespace, flatten_title, title_and_text
from moeir.formats.examples import GroupByQuery, has_digest_id, read_objects, text_digest
from moeir.parsing import preview
from moeir.records import lines, texts
from moeir.records.examples import Example
from moeir.records.texts import Text

ANCHOR_COLUMNS = ("anchor", "query", "question", "sentence1")
POSITIVE_COLUMNS = ("positive", "answer", "pos", "passage", "sentence2")
NEGATIVE_COLUMNS = ("negative", "neg", "negative_1")
_NEGATIVE = re.compile("neg|negative(_[0-9]+)?")
LABEL_COLUMNS = ("label", "score")
LABELLED_COLUMNS = (*POSITIVE_COLUMNS, "document", "response", "text")
DELIMITERS = {".tsv": "\t", ".csv": ","}
_LABELS = {"1": True, "1.0": True, "True": True, "0": False, "0.0": False, "False": False}

class _Rows(base.Format):
    """Rows of an anchor, a positive, and any negatives."""

    kind = "examples"

    def read(self, path: Path, conversion: Conversion) -> Iterator[Example]:
        """Examples by query."""
        grouped = GroupByQuery(conversion)
        for where, record in read_table(path):
            columns = (ANCHOR_COLUMNS, POSITIVE_COLUMNS, *((name,) for name in record if _NEGATIVE.fullmatch(name)))
            query, positive, *negatives = (parse_text_column(record, names, where) for names in columns)
            conversion.drop_unread_fields(where, record, chain(*columns))
            grouped.add(where, query, positive, negatives)
        yield from grouped.examples()


class Pairs(_Rows, Format):
    """Columns anchor, positive: sentence-transformers' pairs, without negatives."""

    def write(self, items: Iterator[Example], path: Path, conversion: Conversion) -> int:
        def to_rows(query: str, positives: list[str], negatives: list[str]) -> list[tuple[str, str]]:
            if negatives:
                conversion.drop_or_refuse(f"query {query!r}", "negatives")
            return [(query, positive) for positive in positives]

        return _write_table(("anchor", "positive"), items, to_rows, path, conversion)


class Triplets(_Rows, Format):
    """Columns anchor, positive, negative: sentence-transformers' triplets, one row per pair of positive and negative."""

    def write(self, items: Iterator[Example], path: Path, conversion: Conversion) -> int:
        def to_rows(query: str, positives: list[str], negatives: list[str]) -> list[tuple[str, str, str]]:
            if not negatives:
                conversion.drop_or_refuse(f"query {query!r}", "a query without a negative")
            return list(product((query,), positives, negatives))

        return _write_table(("anchor", "positive", "negative"), items, to_rows, path, conversion)


class Tuples(_Rows, Format):
    """Columns anchor, positive, negative_1, negative_2, …: sentence-transformers' tuples, equally many negatives per query."""

    def write(self, items: Iterator[Example], path: Path, conversion: Conversion) -> int:
        first = next(items, None)
        width = 0 if first is None else len(first.negative_ids)

        def to_rows(query: str, positives: list[str], negatives: list[str]) -> list[tuple[str, ...]]:
            if len(negatives) != width:
                counts = f"{len(negatives)} negatives where the first query has {width}"
                conversion.drop_or_refuse(f"query {query!r}", f"a query with another number of negatives ({counts})")
            return [(query, positive, *negatives[:width]) for positive in positives if len(negatives) >= width]

        header = ("anchor", "positive", *(f"negative_{number}" for number in range(1, width + 1)))
        return _write_table(header, chain([first] if first else [], items), to_rows, path, conversion)


class Labelled(Format):
    """Columns query, passage, label: 1 for a positive, 0 for a negative; training pairs of sentence-transformers' cross-encoders."""

    kind = "examples"

    def read(self, path: Path, conversion: Conversion) -> Iterator[Example]:
        queries: dict[str, Text] = {}
        sides: dict[str, dict[Text, bool]] = {}
        locations: dict[str, str] = {}
        for where, record in read_table(path):
            query, passage = (parse_text_column(record, names, where) for names in (ANCHOR_COLUMNS, LABELLED_COLUMNS))
            conversion.drop_unread_fields(where, record, (*ANCHOR_COLUMNS, *LABELLED_COLUMNS, *LABEL_COLUMNS))
            value = record.get("label", record.get("score"))
            if (label := _LABELS.get(str(value))) is None:
                expected = "1 is a positive, 0 a negative; a similarity is neither: choose a threshold, or write it as a teacher's score"
                raise DataError(f"{where}: label is not 1 or 0: {value!r}; {expected}")
            queries.setdefault(query.id, query)
            locations.setdefault(query.id, where)
            if sides.setdefault(query.id, {}).setdefault(passage, label) is not label:
                raise DataError(f"{where}: the passage has another label on an earlier line")
        for name, labels in sides.items():
            if not any(labels.values()):
                conversion.drop_or_refuse(locations[name], "a query without a positive")
                continue
            positives, negatives = ([text for text, label in labels.items() if label is expected] for expected in (True, False))
            ids, negative_ids = (tuple(text.id for text in side) for side in (positives, negatives))
            yield Example(name, ids, negative_ids, query=queries[name], passages=(*positives, *negatives))

    def write(self, items: Iterator[Example], path: Path, conversion: Conversion) -> int:
        def to_rows(query: str, positives: list[str], negatives: list[str]) -> list[tuple[str, str, int]]:
            return [(query, passage, label) for label, side in ((1, positives), (0, negatives)) for passage in side]

        return _write_table(("query", "passage", "label"), items, to_rows, path, conversion)


def read_table(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The location of each row (file:line), and its values by column name, in column order."""
    delimiter = DELIMITERS.get(lines.strip_compression_suffix(path).suffix.lower())
    if delimiter is None:
        yield from read_objects(path)
        return
    with lines.open_lines(path) as numbered:
        rows = lines.read_csv(numbered, str(path), delimiter)
        _, header = next(rows, ("", []))
        for where, row in rows:
            if len(row) != len(header):
                raise DataError(f"{where}: {len(header)} columns expected ({', '.join(header)}), found {len(row)}")
            yield where, dict(zip(header, row, strict=True))


def _write_table(
    header: Sequence[str],
    items: Iterable[Example],
    to_rows: Callable[[str, list[str], list[str]], Sequence[Sequence[Any]]],
    path: Path,
    conversion: Conversion,
) -> int:
    """Write the rows of each example's query, positives and negatives, with their column names, and return the number of rows."""
    rows = (row for example in items for row in to_rows(*flatten_example(example, conversion, path)))
    delimiter, count = DELIMITERS.get(_suffix(path)), 0
    if delimiter is None:
        return texts.write_json_lines((dict(zip(header, row, strict=True)) for row in rows), path)
    with lines.open_writer(path) as output:
        table = csv.writer(output, delimiter=delimiter, lineterminator="\n")
        table.writerow(header)
        for row in rows:
            count += 1
            table.writerow(row)
    return count


def _suffix(path: Path) -> str:
    return lines.strip_compression_suffix(str(path)).suffix.lower()


def parse_text_column(record: dict[str, Any], names: Sequence[str], where: str) -> Text:
    """The text of the first column of `names` that the row has, with its digest as id."""
    name = next((column for column in names if column in record), None)
    if name is not None and not isinstance(record[name], str):
        raise DataError(f"{where}: {name} is not a string: {preview(record[name])}")
    if name is None:
        raise DataError(f"{where}: no text column {' or '.join(names)} among {', '.join(record)}")
    return Text(text_digest(record[name]), record[name])


def flatten_example(example: Example, conversion: Conversion, path: Path) -> tuple[str, list[str], list[str]]:
    """The texts of an example's query, positives and negatives; fields without a column are dropped or refused."""
    where = f"query {example.query_id!r}"
    query_text, passage_texts = conversion.look_up_texts(example, [TEACHER_SCORES, PROVENANCE, ANSWERS])
    conversion.drop_nonempty(where, {"ids": not all(map(has_digest_id, (query_text, *passage_texts.values())))})
    passages = {name: flatten_title(passage, where, conversion) for name, passage in passage_texts.items()}
    query, sides = title_and_text(query_text), (example.positive_ids, example.negative_ids)
    if _suffix(path) == ".tsv":
        query = collapse_whitespace(query, where, conversion)
        passages = {name: collapse_whitespace(text, where, conversion) for name, text in passages.items()}
    return query, *([passages[document] for document in ids] for ids in sides)  # type: ignore[return-value]
