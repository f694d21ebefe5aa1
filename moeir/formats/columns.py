"""Rows with named columns, sentence-transformers' training data: JSON lines, TSV or CSV with a header, by the suffix."""

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from moeir.errors import DataError
from moeir.formats.base import Conversion, collapse_whitespace, flatten_title, title_and_text
from moeir.formats.reading import has_digest_id, read_json_lines
from moeir.records import lines
from moeir.records.examples import Example

_DELIMITERS = {".tsv": "\t", ".csv": ","}
ANCHOR_COLUMNS = ("anchor", "query", "question", "sentence1")
POSITIVE_COLUMNS = ("positive", "answer", "pos", "passage", "sentence2")


def read_table(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The location of each row (file:line), and its values by column name, in column order."""
    delimiter = _DELIMITERS.get(lines.strip_compression_suffix(path).suffix.lower())
    if delimiter is None:
        for where, record in read_json_lines(path):
            if not isinstance(record, dict):
                raise DataError(f"{where}: a JSON object was expected")
            yield where, record
        return
    with lines.open_lines(path) as numbered:
        reader = csv.reader((line + "\n" for _, line in numbered), delimiter=delimiter)
        header = next(reader, [])
        for row in reader:
            if len(row) != len(header):
                expected = f"{len(header)} columns expected ({', '.join(header)})"
                raise DataError(f"{path}:{reader.line_num}: {expected}, found {len(row)}")
            yield f"{path}:{reader.line_num}", dict(zip(header, row, strict=True))


def write_table(header: Sequence[str], rows: Iterable[Sequence[Any]], path: Path) -> int:
    """Write rows with their column names and return the number of rows."""
    delimiter, count = _DELIMITERS.get(_suffix(path)), 0
    with lines.open_writer(path) as output:
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
    return lines.strip_compression_suffix(str(path).removesuffix(".partial")).suffix.lower()  # an output is written as PATH.partial first


def first_text_column(record: dict[str, Any], names: Sequence[str], where: str) -> str:
    """The text of the first column of `names` that the row has."""
    name = next((column for column in names if column in record), None)
    if name is None or not isinstance(record[name], str):
        raise DataError(f"{where}: no text column {' or '.join(names)} among {', '.join(record)}")
    return str(record[name])


def flatten_example(example: Example, conversion: Conversion, path: Path) -> tuple[str, list[str], list[str]]:
    """The texts of an example's query, positives and negatives; fields without a column are dropped or refused."""
    where = f"query {example.query_id!r}"
    example = conversion.inline_texts(example, where)
    assert example.query is not None
    for what, present in (
        ("field 'negative_provenance'", example.provenance),
        ("field 'answers'", example.query.answers),
        ("ids", not (has_digest_id(example.query) and all(map(has_digest_id, example.passages)))),
    ):
        if present:
            conversion.drop_or_refuse(where, what)
    passages = {passage.id: flatten_title(passage, where, conversion) for passage in example.passages}
    query, sides = title_and_text(example.query), (example.positive_ids, example.negative_ids)
    if _suffix(path) == ".tsv":
        query = collapse_whitespace(query, where, conversion)
        passages = {name: collapse_whitespace(text, where, conversion) for name, text in passages.items()}
    return query, *([passages[document] for document in ids] for ids in sides)  # type: ignore[return-value]


def drop_teacher_scores(example: Example, conversion: Conversion) -> None:
    """Drop or refuse teacher scores, for which rows have no column."""
    if example.positive_scores:
        conversion.drop_or_refuse(f"query {example.query_id!r}", "a teacher's scores")
