"""Checks of runs: faulty lines, ranks in another order than the scores, and repeated documents."""

from moeir.data_checks.findings import FileFindings
from moeir.data_checks.tolerant_lines import read_tolerantly
from moeir.errors import DataError
from moeir.records import runs
from moeir.records.ids import parse_id


def check_run(file: FileFindings) -> None:
    """Check the hits of a run."""
    listed = set[int]()  # hashes, in a fraction of the memory of the ids
    last_hits = dict[str, tuple[int, float]]()  # rank and score on the last line of each query
    for number, line in read_tolerantly(file):
        where = f"{file.name}:{number}"
        if not line.strip():
            continue
        try:
            query, document, rank, score, tag = runs.parse_hit(line, where)
            for word in () if line.isprintable() else (query, document, tag):
                parse_id(word, where)
        except DataError as problem:
            file.add_error(problem)
            continue
        file.check_references(where, query, document)
        if (key := hash((query, document))) in listed:
            file.add(where, "duplicate", f"document {document!r} occurs twice in the list of {query!r}")
            continue
        listed.add(key)
        rank_above, score_above = last_hits.get(query, (0, float("inf")))
        if rank <= rank_above or score > score_above:
            hits = f"rank {rank}, score {runs.format_score(score)} under rank {rank_above}, score {runs.format_score(score_above)}"
            file.add(where, "rank-order", f"query {query!r}: {hits}")
        last_hits[query] = rank, score
    file.add_absent_queries(last_hits, "query-without-hits", "are not in the run")
