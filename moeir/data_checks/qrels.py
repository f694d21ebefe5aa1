"""Checks of judgements: faulty lines, pairs judged twice, and unknown queries or documents."""

from collections.abc import Iterator

from moeir import data_sources
from moeir.data_checks.findings import FileFindings
from moeir.data_checks.tolerant_lines import read_tolerantly
from moeir.errors import DataError
from moeir.records import qrels
from moeir.records.ids import parse_id


def check_qrels(file: FileFindings) -> None:
    """Check the judgements of a file."""
    judged, parser = dict[str, dict[str, int]](), qrels.JudgementParser(file.name)
    for number, line in _numbered_lines(file):
        where = f"{file.name}:{number}"
        try:
            judgement = parser.parse(line, number)
            for name in (judgement or ())[:2]:
                parse_id(name, where)
        except DataError as problem:
            file.add_error(problem)
        else:
            if judgement is not None:
                _check_judgement(judgement, where, file, judged)
    for query, grades in judged.items():
        if max(grades.values()) <= 0:
            file.add(file.name, "no-relevant", f"query {query!r} has {len(grades)} judgements and no relevant document")
    file.add_absent_queries(judged, "unjudged-query", "have no judgement")


def _numbered_lines(file: FileFindings) -> Iterator[tuple[int, str]]:
    if not data_sources.is_remote(file.path):
        return read_tolerantly(file)
    return ((number, "\t".join(map(str, row))) for number, (_, row) in enumerate(qrels.read_remote(str(file.path)), 1))


def _check_judgement(judgement: tuple[str, str, int], where: str, file: FileFindings, judged: qrels.Qrels) -> None:
    query, document, grade = judgement
    pair, grades = f"query {query!r}, document {document!r}", judged.setdefault(query, {})
    if document not in grades:
        file.check_references(where, query, document)
    elif grades[document] == grade:
        file.add(where, "duplicate", f"{pair}: judged on an earlier line too")
    else:
        file.add(where, "grades-disagree", f"{pair}: {grade} here, {grades[document]} on an earlier line")
    grades.setdefault(document, grade)
