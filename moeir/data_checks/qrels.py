"""Checks of judgements: faulty lines, pairs judged twice, and unknown queries or documents."""

from collections.abc import Collection, Iterator
from pathlib import Path

from moeir.data_checks.findings import Findings
from moeir.data_checks.tolerant_lines import read_tolerantly
from moeir.errors import DataError
from moeir.records import lines, qrels


def check_qrels(
    path: Path | str, findings: Findings, queries: Collection[str] | None = None, documents: Collection[str] | None = None
) -> Iterator[str]:
    """Lines of a repaired copy. `queries` and `documents` are the known ids; None if unknown."""
    name = lines.source_name(path)
    judged: qrels.Qrels = {}
    for number, line in read_tolerantly(path, findings):
        try:
            judgement = qrels.parse_judgement(line, number, name)
        except DataError as problem:
            findings.add_error(name, problem)
            continue
        if judgement is None or _is_accepted(judgement, name, number, findings, judged, queries, documents):
            yield line
    for query, grades in judged.items():
        if max(grades.values()) <= 0:
            findings.add(name, None, "no-relevant", f"query {query!r} has {len(grades)} judgements and no relevant document")
    absent = [query for query in queries or () if query not in judged]
    if queries is not None and absent:
        findings.add(
            name, None, "unjudged-query", f"{len(absent):,} of {len(queries):,} queries have no judgement, such as {min(absent)!r}"
        )


def _is_accepted(
    judgement: tuple[str, str, int],
    name: str,
    number: int,
    findings: Findings,
    judged: qrels.Qrels,
    queries: Collection[str] | None,
    documents: Collection[str] | None,
) -> bool:
    query, document, grade = judgement
    if queries is not None and query not in queries:
        findings.add(name, number, "unknown-query", f"query {query!r} is not among the queries")
        return False
    if documents is not None and document not in documents:
        findings.add(name, number, "unknown-document", f"document {document!r} of query {query!r} is not in the corpus")
        return False
    earlier = judged.setdefault(query, {}).get(document)
    if earlier is None:
        judged[query][document] = grade
        return True
    if earlier == grade:
        findings.add(name, number, "duplicate-judgement", f"query {query!r}, document {document!r}: judged on an earlier line too")
    else:
        findings.add(name, number, "grades-disagree", f"query {query!r}, document {document!r}: {grade} here, {earlier} on an earlier line")
    return False
