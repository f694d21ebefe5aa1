"""Relevance judgements (qrels): reads TREC and BEIR forms, `hf:` and `irds:` sources; writes TREC's."""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from moeir import data_sources
from moeir.errors import DataError
from moeir.parsing import shorten_message
from moeir.records import lines, remote_rows, trec_columns
from moeir.records.ids import parse_id

Qrels: TypeAlias = dict[str, dict[str, int]]

MAX_GRADE = 10**15 - 1  # exact in float64
_WHOLE_NUMBER = re.compile("[+-]?[0-9]{1,15}")
_GRADE_HEADERS = {"score", "grade", "rel", "relevance", "label", "qrel"}
ROW_FIELDS = {  # of `hf:` and `irds:` sources, by what they hold
    "query": ("query-id", "query_id", "qid"),
    "document": ("corpus-id", "corpus_id", "doc_id", "docid", "document_id"),
    "grade": ("score", "relevance", "grade", "label"),
}
_COLUMNS = {4: ("query", "0", "document", "grade"), 3: ("query", "document", "grade")}
_EXPECTED_COLUMNS = "4 columns (query 0 document grade) or 3 (query document grade)"


def read_qrels(path: Path | str) -> Qrels:
    """Read grades by query and document, from four columns (TREC), three (BEIR, with or without a header), `hf:NAME` or `irds:NAME#qrels`.

    Blank lines and comments, which begin with `#`, are skipped, as trec_eval does.
    """
    qrels: Qrels = {}
    name = lines.source_name(path)
    for where, (query, document, grade) in read_remote(name) if data_sources.is_remote(path) else _read_file(path, name):
        earlier = qrels.setdefault(query, {}).setdefault(document, grade)
        if earlier != grade:
            problem = f"grade {grade} here, {earlier} on an earlier line"
            raise DataError(f"{where}: query {query!r}, document {document!r}: {problem}")
    if not qrels:
        raise DataError(f"{name}: holds no judgement; expected {_EXPECTED_COLUMNS}")
    return qrels


def _read_file(path: Path | str, name: str) -> Iterator[tuple[str, tuple[str, str, int]]]:
    parser = JudgementParser(name)
    with lines.open_lines(path) as numbered:
        for number, line in numbered:
            if (judgement := parser.parse(line, number)) is not None:
                yield f"{name}:{number}", judgement


def read_remote(source: str) -> Iterator[tuple[str, tuple[str, str, int]]]:
    """Location and query, document and grade of each row of an `hf:` or `irds:` source."""
    for where, row in remote_rows.read_irds(source, ("qrels",)) if source.startswith("irds:") else remote_rows.read_hf(source):
        yield where, judgement_from_row(row if isinstance(row, dict) else row._asdict(), where)


def judgement_from_row(row: Mapping[str, Any], where: str) -> tuple[str, str, int]:
    """Query, document and grade of a row with one of the usual names for each.

    >>> judgement_from_row({"query-id": 1, "corpus-id": "owl", "score": 2.0}, "row 1")
    ('1', 'owl', 2)
    """
    values = []
    for what, names in ROW_FIELDS.items():
        if (name := next((name for name in names if name in row), None)) is None:
            raise DataError(f"{where}: no {what}; expected one of {', '.join(names)} among {', '.join(map(repr, row))}")
        values.append((row[name], f"{where}, column {name!r}"))
    query, document, (grade, location) = values
    return parse_id(*query), parse_id(*document), parse_grade(grade, location)


class JudgementParser:
    """Parses the lines of one file of judgements, whose first one decides how many columns all have."""

    def __init__(self, name: str) -> None:
        self._name, self._width = name, 0

    def parse(self, line: str, number: int) -> tuple[str, str, int] | None:
        r"""Query, document and grade of a line; None for one that is blank, a comment, or a header.

        >>> parser = JudgementParser("dev.tsv")
        >>> parser.parse("query-id\tcorpus-id\tscore", 1), parser.parse("q1\towl\t2", 2)
        (None, ('q1', 'owl', 2))
        """
        where, encoded = f"{self._name}:{number}", line.encode()
        columns = trec_columns.split_columns(encoded)
        if line.startswith("#"):
            self._check_comment(line, columns, where)
        if not any(columns) or line.startswith("#"):
            return None
        is_markup = not self._width and not columns[-1].isdigit() and lines.describe_markup(line)
        if is_markup or len(columns) not in _COLUMNS or self._width not in (0, len(columns)):
            expected = f"{self._width} columns, as in the lines above" if self._width else _EXPECTED_COLUMNS
            raise DataError(f"{where}: expected {expected}, found {trec_columns.describe_columns(encoded)}")
        if b'"' in encoded and b"\t" in encoded and any(len(column) > 1 and column[:1] == column[-1:] == b'"' for column in columns):
            raise DataError(f"{where}: a column is in quotation marks: {shorten_message(repr(line))}; remove them all")
        if not self._width and columns[-1].decode().lower() in _GRADE_HEADERS:
            if columns[0].decode().lower() in ROW_FIELDS["document"]:
                raise DataError(f"{where}: the columns are {' '.join(line.split())}; expected query, document, grade")
            self._width = len(columns)
            return None
        if b"\t" in encoded:
            trec_columns.check_words(columns, _COLUMNS[len(columns)], where)
        elif len(columns) == 4 and columns[1] not in (b"0", b"Q0"):
            trec_columns.check_iteration(columns, encoded, where)
        judgement = columns[0].decode(), columns[-2].decode(), parse_grade(columns[-1].decode(), where)
        self._width = len(columns)
        return judgement

    def _check_comment(self, line: str, columns: list[bytes], where: str) -> None:
        """DataError if a line that begins with # could be a judgement as well as a comment."""
        if line[1:2] != " " and len(columns) in _COLUMNS and columns[-1].lstrip(b"+-").isdigit():
            problem = f"a comment, or the judgement of a query whose id begins with #: {shorten_message(repr(line))}"
            raise DataError(f"{where}: {problem}; a comment has a space behind #, and such an id needs another name")


def write_qrels(qrels: Mapping[str, Mapping[str, int]], path: Path | str) -> None:
    """Write judgements in TREC form, in their order; DataError for what `read_qrels` refuses."""
    rows = ((query, document, grade) for query, grades in qrels.items() for document, grade in grades.items())
    lines.write_lines([f"{query} 0 {document} {grade}" for query, document, grade in validate_judgements(rows, path)], path)


def validate_judgements(rows: Iterable[tuple[Any, Any, Any]], path: Path | str) -> Iterator[tuple[str, str, int]]:
    """Queries, documents and grades for a file of judgements; DataError for what `read_qrels` refuses there, or takes as a comment."""
    name = lines.source_name(path, "standard output")
    for query, document, grade in rows:
        query_id = parse_id(query, name)
        if query_id[0] == "#":
            problem = "expected an id that does not begin with #, which marks a comment"
            raise DataError(f"{name}: query {query!r} cannot be written to judgements: {problem}")
        if type(grade) is not int or abs(grade) > MAX_GRADE:
            grade = parse_grade(grade, f"{name}: query {query!r}, document {document!r}")
        yield query_id, parse_id(document, name), grade


def parse_grade(value: Any, where: str) -> int:
    """A grade: a whole number or its digits; in a table and from a caller in Python, also a float or bool that is one."""
    number = value.item() if isinstance(value, np.generic) else value
    if isinstance(number, bool) or (isinstance(number, float) and number.is_integer()):
        number = int(number)
    text = str(number)
    if _WHOLE_NUMBER.fullmatch(text) is None:
        raise DataError(f"{where}: grade is not a whole number of at most 15 digits: {text[:40]!r}")
    return int(text)
