"""Checks of judgements: faulty lines, pairs judged twice, and unknown queries or documents."""

from collections.abc import Iterator

from moeir import data_sources
from moeir.data_checks.findings import FileFindings
from moeir.data_checks.tolerant_lines import read_tolerantly
from moeir.errors import DataError
from moeir.records import qrels


def check_qrels(file: FileFindings) -> Iterator[str]:
    """Lines of a repaired copy."""
    judged, parser = dict[str, dict[str, int]](), qrels.JudgementParser(file.name)
    for number, line in _numbered_lines(file):
        try:
            judgement = parser.parse(line, number)
        except DataError as problem:
            file.add_error(problem)
            continue
        if judgement is None or _is_accepted(judgement, number, file, judged):
            yield line
    for query, grades in judged.items():
        if max(grades.values()) <= 0:
            file.add(None, "no-relevant", f"query {query!r} has {len(grades)} judgements and no relevant document")
    file.add_absent_queries(judged, "unjudged-query", "have no judgement")


def _numbered_lines(file: FileFindings) -> Iterator[tuple[int, str]]:
    if not data_sources.is_remote(file.path):
        return read_tolerantly(file)
    return ((number, "\t".join(map(str, row))) for number, (_, row) in enumerate(qrels.read_remote(str(file.path)), 1))


def _is_accepted(judgement: tuple[str, str, int], number: int, file: FileFindings, judged: qrels.Qrels) -> bool:
    query, document, grade = judgement
    if not file.has_known_ids(number, query, document):
        return False
    earlier = judged.setdefault(query, {}).get(document)
    if earlier is None:
        judged[query][document] = grade
        return True
    if earlier == grade:
        file.add(number, "duplicate-judgement", f"query {query!r}, document {document!r}: judged on an earlier line too")
    else:
        file.add(number, "grades-disagree", f"query {query!r}, document {document!r}: {grade} here, {earlier} on an earlier line")
    return False
