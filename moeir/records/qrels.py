"""Relevance judgements (qrels): reads TREC and BEIR forms, `hf:` and `irds:` sources; writes TREC's."""

from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

from moeir import data_sources
from moeir.errors import DataError, UsageError
from moeir.records import lines, remote_rows

Qrels: TypeAlias = dict[str, dict[str, int]]

MAX_GRADE = 2**53  # larger numbers are not exact in float64
_GRADE_HEADERS = {"score", "grade", "rel", "relevance", "label", "qrel"}
ROW_FIELDS = {  # of `hf:` and `irds:` sources, by what they hold
    "query": ("query-id", "query_id", "qid"),
    "document": ("corpus-id", "corpus_id", "doc_id", "docid", "document_id"),
    "grade": ("score", "relevance", "grade", "label"),
}
_EXPECTED_COLUMNS = "4 columns (query 0 document grade) or 3 (query document grade)"


def read_qrels(path: Path | str) -> Qrels:
    """Read grades by query and document, from four columns (TREC), three (BEIR, with or without a header), `hf:NAME` or `irds:NAME#qrels`.

    Lines that are blank or begin with `#` are skipped, as trec_eval does.
    """
    qrels: Qrels = {}
    name = lines.source_name(path)
    for where, (query, document, grade) in read_remote(name) if data_sources.is_remote(path) else _read_file(path, name):
        earlier = qrels.setdefault(query, {}).setdefault(document, grade)
        if earlier != grade:
            problem = f"grade {grade} here, {earlier} on an earlier line"
            raise DataError(f"{where}: query {query!r}, document {document!r}: {problem}", code="grades-disagree")
    if not qrels:
        raise DataError(f"{name}: holds no judgement; expected {_EXPECTED_COLUMNS}")
    return qrels


def _read_file(path: Path | str, name: str) -> Iterator[tuple[str, tuple[str, str, int]]]:
    with lines.open_lines(path) as numbered:
        for number, line in numbered:
            if (judgement := parse_judgement(line, number, name)) is not None:
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
            raise DataError(f"{where}: no {what}; expected one of {', '.join(names)} among {', '.join(map(repr, row))}", code="columns")
        values.append(row[name])
    query, document, grade = values
    return str(query), str(document), _parse_grade(f"{grade:g}" if isinstance(grade, float) else str(grade), where)


def parse_judgement(line: str, number: int, name: str) -> tuple[str, str, int] | None:
    """Query, document and grade of a line; None for one that is blank, a comment, or a header.

    >>> parse_judgement("q1 0 owl 2", 1, "dev.qrels"), parse_judgement("query-id\\tcorpus-id\\tscore", 1, "dev.tsv")
    (('q1', 'owl', 2), None)
    """
    fields = [field.decode() for field in line.encode().split()]  # bytes split at ASCII white space only, as trec_eval does
    if not fields or line.startswith("#"):
        return None
    if number == 1 and len(fields) in (3, 4) and fields[-1].lower() in _GRADE_HEADERS:
        return None
    if len(fields) not in (3, 4):
        raise DataError(f"{name}:{number}: expected {_EXPECTED_COLUMNS}, found {len(fields)}", code="columns")
    return fields[0], fields[-2], _parse_grade(fields[-1], f"{name}:{number}")


def write_qrels(qrels: Mapping[str, Mapping[str, int]], path: Path | str) -> None:
    """Write judgements in TREC form, in their order; UsageError for an id that this form cannot hold."""
    for name in chain(qrels, *qrels.values()):
        if name.split() != [name] or (name.startswith("#") and name in qrels):
            problem = "an id is one word without white space, that of a query does not begin with #, which marks a comment"
            raise UsageError(f"{lines.source_name(path)}: {name!r} cannot be written to judgements: {problem}")
    lines.write_lines((f"{query} 0 {document} {grade}" for query, grades in qrels.items() for document, grade in grades.items()), path)


def _parse_grade(text: str, where: str) -> int:
    try:
        if "_" in text:
            raise ValueError
        grade = int(text)
    except ValueError:
        pass
    else:
        if abs(grade) > MAX_GRADE:
            raise DataError(f"{where}: grade is too large: {text[:40]!r}; expected at most {MAX_GRADE:,}", code="grade-not-a-number")
        return grade
    try:
        float(text)
    except ValueError:
        raise DataError(f"{where}: grade is not a number: {text!r}", code="grade-not-a-number") from None
    raise DataError(f"{where}: grade is not a whole number: {text!r}", code="grade-not-whole")
