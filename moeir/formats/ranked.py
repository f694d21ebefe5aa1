"""Rows of other tools' runs: hits by query, with scores or only ranks."""

from collections.abc import Iterable, Iterator

from moeir.errors import DataError
from moeir.formats.base import Conversion
from moeir.records.runs import Run

LocatedHit = tuple[str, str, str, float]  # location, query, document, score


def run_from_hits(hits: Iterable[LocatedHit], name: str, tag: str = "moeir") -> Run:
    """Build a run from hits in any order."""
    queries: dict[str, int] = {}
    names: dict[str, int] = {}
    locations, query_codes, document_codes, scores = list[str](), list[int](), list[int](), list[float]()
    for where, query, document, score in hits:
        locations.append(where)
        query_codes.append(queries.setdefault(query, len(queries)))
        document_codes.append(names.setdefault(document, len(names)))
        scores.append(score)
    if not locations:
        raise DataError(f"{name}: has no hits")
    return Run.from_columns(list(queries), query_codes, list(names), document_codes, scores, tag, location=locations.__getitem__)


def scores_from_ranks(hits: Iterable[tuple[str, str, str, int]]) -> Iterator[LocatedHit]:
    """Scores for hits that have only ranks, in any order: a query's last hit gets 1, each better one 1 more."""
    lists: dict[str, list[tuple[int, str, str]]] = {}
    for where, query, document, rank in hits:
        lists.setdefault(query, []).append((rank, where, document))
    for query, ranked_hits in lists.items():
        ranked_hits.sort(key=lambda hit: hit[0])
        for position, (rank, where, document) in enumerate(ranked_hits):
            if position and ranked_hits[position - 1][0] == rank:
                raise DataError(f"{where}: rank {rank} appears twice in the list of query {query!r}")
            yield where, query, document, float(len(ranked_hits) - position)


def iter_hits(run: Run) -> Iterator[tuple[str, str, int, float]]:
    """Query, document, rank and score of every hit."""
    for query in run.queries:
        for rank, (document, score) in enumerate(run.hits(query), 1):
            yield query, document, rank, score


def drop_scores(run: Run, conversion: Conversion) -> None:
    """Drop or refuse scores; nothing is lost where they are only counted ranks."""
    for query in run.queries:
        hits = run.hits(query)
        if any(score != len(hits) - position for position, (_, score) in enumerate(hits)):
            conversion.drop_or_refuse(f"query {query!r}", "the scores")
            return


def drop_tag(run: Run, conversion: Conversion) -> None:
    """Drop or refuse the run's tag, unless it is the default."""
    if run.tag != "moeir":
        conversion.drop_or_refuse(f"tag {run.tag!r}", "the tag of the run")


def parse_whole_number(word: str, what: str, where: str) -> int:
    """Parse a non-negative whole number."""
    if not word.isdecimal():
        raise DataError(f"{where}: {what} is not a whole number: {word!r}")
    return int(word)
