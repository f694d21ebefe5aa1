"""Rows of texts under named columns, as sentence-transformers trains on them: JSON lines, or a header and tabs or commas, by the suffix."""

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
    """Where each row stands, and its columns by name, in their order."""
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
                raise DataError(f"{path}:{reader.line_num}: {expected}, {len(row)} found")
            yield f"{path}:{reader.line_num}", dict(zip(header, row, strict=True))


def write(header: Sequence[str], rows: Iterable[Sequence[Any]], path: Path) -> int:
    """Rows under a header; how many."""
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
    return lines.stem(str(path).removesuffix(".partial")).suffix.lower()  # a product is written beside its place


def text_of(record: dict[str, Any], names: Sequence[str], where: str) -> str:
    """The first of these columns that there is."""
    name = next((column for column in names if column in record), None)
    if name is None or not isinstance(record[name], str):
        raise DataError(f"{where}: no column {' or '.join(names)} with a text among {', '.join(record)}")
    return str(record[name])


def plain(example: Example, conversion: Conversion, path: Path) -> tuple[str, list[str], list[str]]:
    """The texts of an example, its query, positives and negatives; what rows have no column for is lost."""
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
    """A teacher's scores, where rows have no column for them."""
    if example.positive_scores:
        conversion.lose(f"query {example.query_id!r}", "a teacher's scores")
