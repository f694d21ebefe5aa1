"""Rows with named columns, sentence-transformers' training data: JSON lines, TSV or CSV with a header, by the suffix."""

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from moeir.errors import DataError
from moeir.formats.base import Conversion, one_line, one_string, whole
from moeir.formats.reading import is_named, json_lines
from moeir.records import lines
from moeir.records.examples import Example

_TABLES = {".tsv": "\t", ".csv": ","}
ANCHORS = ("anchor", "query", "question", "sentence1")
POSITIVES = ("positive", "answer", "pos", "passage", "sentence2")


def read(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The location of each row (file:line), and its values by column name, in column order."""
    delimiter = _TABLES.get(lines.stem(path).suffix.lower())
    if delimiter is None:
        for where, record in json_lines(path):
            if not isinstance(record, dict):
                raise DataError(f"{where}: a JSON object was expected")
            yield where, record
        return
    with lines.opened(path) as numbered:
        reader = csv.reader((line + "\n" for _, line in numbered), delimiter=delimiter)
        header = next(reader, [])
        for row in reader:
            if len(row) != len(header):
                expected = f"{len(header)} columns expected ({', '.join(header)})"
                raise DataError(f"{path}:{reader.line_num}: {expected}, found {len(row)}")
            yield f"{path}:{reader.line_num}", dict(zip(header, row, strict=True))


def write(header: Sequence[str], rows: Iterable[Sequence[Any]], path: Path) -> int:
    """Write rows with their column names and return the number of rows."""
    delimiter, count = _TABLES.get(_suffix(path)), 0
    with lines.writer(path) as output:
        table = None if delimiter is None else csv.writer(output, delimiter=delimiter, lineterminator="\n")
        if table is not None:
            table.writerow(header)
        for row in rows:
            count += 1
            if table is not None:
                table.writerow(row)
            else:
                output.write(json.dumps(dict(zip(header, row, strict=True)), ensure_ascii=False) + "\n")
    return count


def _suffix(path: Path) -> str:
    return lines.stem(str(path).removesuffix(".partial")).suffix.lower()  # an output is written as PATH.partial first


def text_of(record: dict[str, Any], names: Sequence[str], where: str) -> str:
    """The text of the first column of `names` that the row has."""
    name = next((column for column in names if column in record), None)
    if name is None or not isinstance(record[name], str):
        raise DataError(f"{where}: no text column {' or '.join(names)} among {', '.join(record)}")
    return str(record[name])


def plain(example: Example, conversion: Conversion, path: Path) -> tuple[str, list[str], list[str]]:
    """The texts of an example's query, positives and negatives; fields without a column are dropped or refused."""
    where = f"query {example.query_id!r}"
    example = conversion.with_texts(example, where)
    assert example.query is not None
    for what, present in (
        ("field 'negative_provenance'", example.provenance),
        ("field 'answers'", example.query.answers),
        ("ids", not (is_named(example.query) and all(map(is_named, example.passages)))),
    ):
        if present:
            conversion.lose(where, what)
    passages = {passage.id: one_string(passage, where, conversion) for passage in example.passages}
    query, sides = whole(example.query), (example.positive_ids, example.negative_ids)
    if _suffix(path) == ".tsv":
        query = one_line(query, where, conversion)
        passages = {name: one_line(text, where, conversion) for name, text in passages.items()}
    return query, *([passages[document] for document in ids] for ids in sides)  # type: ignore[return-value]


def lose_scores(example: Example, conversion: Conversion) -> None:
    """Drop or refuse teacher scores, for which rows have no column."""
    if example.positive_scores:
        conversion.lose(f"query {example.query_id!r}", "a teacher's scores")
