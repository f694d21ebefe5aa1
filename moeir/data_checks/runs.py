"""Checks of runs: faulty lines, ranks in another order than the scores, and repeated documents."""

from array import array
from collections.abc import Iterator

from moeir.data_checks.findings import FileFindings
from moeir.data_checks.tolerant_lines import read_tolerantly
from moeir.errors import DataError
from moeir.records import runs
from moeir.records.ids import parse_id


def check_run(file: FileFindings) -> Iterator[str]:
    """Lines of a repaired copy: all but those with a document of an earlier line of the query's list."""
    document_codes: dict[str, int] = {}  # so that a list takes eight bytes per hit
    finished: dict[str, array[int]] = {}
    current, listed, above = None, set[int](), (0, float("inf"))
    for number, line in read_tolerantly(file):
        where = f"{file.name}:{number}"
        try:
            query, document, rank_word, score, tag = runs.parse_hit(line, where)
            rank = runs.parse_rank(rank_word, where)
            for word in () if line.isprintable() else (query, document, tag):
                parse_id(word, where)
        except DataError as problem:
            file.add_error(problem)
            yield line
            continue
        file.check_references(number, query, document)
        if query != current:
            if current is not None:
                finished[current] = array("q", listed)
            current, listed, above = query, set(finished.get(query, ())), (0, float("inf"))
        code = document_codes.setdefault(document, len(document_codes))
        if code in listed:
            file.add(number, "duplicate", f"document {document!r} occurs twice in the list of {query!r}")
            continue
        listed.add(code)
        if rank <= above[0] or score > above[1]:
            hits = f"rank {rank}, score {runs.format_score(score)} under rank {above[0]}, score {runs.format_score(above[1])}"
            file.add(number, "rank-order", f"query {query!r}: {hits}")
        above = rank, score
        yield line
    file.add_absent_queries({*finished, current or ""}, "query-without-hits", "are not in the run")
