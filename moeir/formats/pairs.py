"""sentence-transformers' training rows with named columns: JSON lines, TSV or CSV with a header, by the suffix; parquet; `hf:` sources."""

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from moeir.errors import DataError
from moeir.formats.base import ANSWERS, PROVENANCE, TEACHER_SCORES, Conversion, Format, collapse_whitespace, flatten_title, title_and_text
from moeir.formats.examples import GroupByQuery, has_digest_id, read_objects, text_digest, validate_example
from moeir.parsing import preview
from moeir.records import lines, texts
from moeir.records.examples import Example
from moeir.records.texts import Text

ANCHOR_COLUMNS = ("anchor", "query", "question", "sentence1")
POSITIVE_COLUMNS = ("positive", "answer", "pos", "passage", "sentence2")
NEGATIVE_COLUMNS = ("negative", "neg", "negative_1")
_NUMBERED_NEGATIVE = re.compile("negative_[0-9]+")
LABEL_COLUMNS = ("label", "score")
LABELLED_COLUMNS = (*POSITIVE_COLUMNS, "document", "response", "text")
LONGEST_FIELD = 2**31 - 1  # characters
DELIMITERS = {".tsv": "\t", ".csv": ","}
_LABELS = {"1": True, "1.0": True, "True": True, "0": False, "0.0": False, "False": False}


class Pairs(Format):
    """Columns anchor, positive: sentence-transformers' pairs, without negatives."""

    kind = "examples"

    def read(self, path: Path, conversion: Conversion) -> Iterator[Example]:
        return _read_groups(path, conversion, lambda record: ())

    def write(self, items: Iterator[Example], path: Path, conversion: Conversion) -> int:
        def rows() -> Iterator[tuple[str, str]]:
            for example in items:
                query, positives, negatives = flatten_example(example, conversion, path)
                if negatives:
                    conversion.drop_or_refuse(f"query {example.query_id!r}", "negatives")
                yield from ((query, positive) for positive in positives)

        return write_table(("anchor", "positive"), rows(), path)


class Triplets(Format):
    """Columns anchor, positive, negative: sentence-transformers' triplets, one row per pair of positive and negative."""

    kind = "examples"

    def read(self, path: Path, conversion: Conversion) -> Iterator[Example]:
        return _read_groups(path, conversion, lambda record: (NEGATIVE_COLUMNS,))

    def write(self, items: Iterator[Example], path: Path, conversion: Conversion) -> int:
        def rows() -> Iterator[tuple[str, str, str]]:
            for example in items:
                query, positives, negatives = flatten_example(example, conversion, path)
                if not negatives:
                    conversion.drop_or_refuse(f"query {example.query_id!r}", "a query without a negative")
                yield from ((query, positive, negative) for positive in positives for negative in negatives)

        return write_table(("anchor", "positive", "negative"), rows(), path)


class Tuples(Format):
    """Columns anchor, positive, negative_1, negative_2, …: sentence-transformers' tuples, equally many negatives per query."""

    kind = "examples"

    def read(self, path: Path, conversion: Conversion) -> Iterator[Example]:
        return _read_groups(path, conversion, lambda record: [(name,) for name in record if _NUMBERED_NEGATIVE.fullmatch(name)])

    def write(self, items: Iterator[Example], path: Path, conversion: Conversion) -> int:
        first = next(items, None)
        width = 0 if first is None else len(first.negative_ids)

        def rows() -> Iterator[tuple[str, ...]]:
            for example in chain([] if first is None else [first], items):
                query, positives, negatives = flatten_example(example, conversion, path)
                if len(negatives) != width:
                    counts = f"{len(negatives)} negatives where the first query has {width}"
                    conversion.drop_or_refuse(f"query {example.query_id!r}", f"a query with another number of negatives ({counts})")
                if len(negatives) >= width:
                    yield from ((query, positive, *negatives[:width]) for positive in positives)

        return write_table(("anchor", "positive", *(f"negative_{number}" for number in range(1, width + 1))), rows(), path)


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
                raise DataError(f"{where}: label is not 1 or 0: {value!r}; {expected}", code="grade-not-a-number")
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
            example = Example(name, ids, negative_ids, query=queries[name], passages=(*positives, *negatives))
            yield validate_example(example, locations[name])

    def write(self, items: Iterator[Example], path: Path, conversion: Conversion) -> int:
        def rows() -> Iterator[tuple[str, str, int]]:
            for example in items:
                query, positives, negatives = flatten_example(example, conversion, path)
                yield from ((query, passage, 1) for passage in positives)
                yield from ((query, passage, 0) for passage in negatives)

        return write_table(("query", "passage", "label"), rows(), path)


def _read_groups(
    path: Path, conversion: Conversion, negative_columns: Callable[[dict[str, Any]], Sequence[Sequence[str]]]
) -> Iterator[Example]:
    """Examples by query; `negative_columns` gives for a row the possible names of the column of each negative."""
    grouped = GroupByQuery(conversion)
    for where, record in read_table(path):
        columns = (ANCHOR_COLUMNS, POSITIVE_COLUMNS, *negative_columns(record))
        query, positive, *negatives = (parse_text_column(record, names, where) for names in columns)
        conversion.drop_unread_fields(where, record, chain(*columns))
        grouped.add(where, query, positive, negatives)
    yield from grouped.examples()


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
                raise DataError(f"{where}: {len(header)} columns expected ({', '.join(header)}), found {len(row)}", code="columns")
            yield where, dict(zip(header, row, strict=True))


def write_table(header: Sequence[str], rows: Iterable[Sequence[Any]], path: Path) -> int:
    """Write rows with their column names and return the number of rows."""
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
    return lines.strip_compression_suffix(str(path).removesuffix(".partial")).suffix.lower()  # an output is written as PATH.partial first


def parse_text_column(record: dict[str, Any], names: Sequence[str], where: str) -> Text:
    """The text of the first column of `names` that the row has, with its digest as id."""
    name = next((column for column in names if column in record), None)
    if name is not None and not isinstance(record[name], str):
        raise DataError(f"{where}: {name} is not a string: {preview(record[name])}", code="text-not-a-string")
    if name is None:
        raise DataError(f"{where}: no text column {' or '.join(names)} among {', '.join(record)}", code="no-text")
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
