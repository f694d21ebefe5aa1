"""Mine negatives from runs and judgements, each with its provenance: every run that retrieved it."""

import math
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from types import MappingProxyType
from typing import TypeAlias

import numpy as np

from moeir.errors import UsageError
from moeir.records.examples import Example, trim_score
from moeir.records.qrels import Qrels
from moeir.records.runs import Run

NegativeSelector: TypeAlias = Callable[[Sequence[str], Collection[str]], list[str]]


@dataclass
class MiningCounts:
    """Counts of queries that gave an example or were skipped, and of candidates that are no negatives, both by reason."""

    mined: int = 0
    without_positives: int = 0
    without_hits: int = 0
    without_negatives: int = 0
    own_documents: int = 0
    with_grades: int = 0
    with_answers: int = 0
    twins: int = 0
    near_positives: int = 0
    unfiltered: int = 0  # queries with an example, of which no positive has a score to compare with
    unscored: int = 0  # negatives that the teacher's run lacks


def band(hits: Sequence[str], positives: Collection[str], *, first: int = 0, last: int = 200) -> list[str]:
    """Documents of ranks `first` + 1 to `last`, positives removed.

    >>> band(["a", "b", "c", "d"], {"b"}, first=1, last=4)
    ['c', 'd']
    """
    if not 0 <= first < last:
        raise UsageError(f"band:first={first},last={last}: expected 0 or more, and first before last")
    return [document for document in hits[first:last] if document not in positives]


def pool_negatives(
    runs: Mapping[str, Run], query: str, positives: Collection[str], select: NegativeSelector
) -> dict[str, list[tuple[str, int, float]]]:
    """The negatives of one query: documents that `select` takes from each run, interleaved by rank, each with the run, rank and score of
    every list that has it.

    >>> bm25 = Run.from_hits({"q": {"a": 9.0, "b": 8.0}})
    >>> dense = Run.from_hits({"q": {"b": 0.7, "c": 0.5}})
    >>> list(pool_negatives({"bm25": bm25, "dense": dense}, "q", {"a"}, band))
    ['b', 'c']
    """
    hits = {name: run.hits(query) for name, run in runs.items()}
    columns = [select([document for document, _ in run_hits], positives) for run_hits in hits.values()]
    chosen = dict.fromkeys(document for turn in zip_longest(*columns) for document in turn if document is not None)
    sources: dict[str, list[tuple[str, int, float]]] = {document: [] for document in chosen}
    for name, run_hits in hits.items():
        for rank, (document, score) in enumerate(run_hits, 1):
            if document in sources:
                sources[document].append((name, rank, score))
    return sources


def select_candidates(runs: Mapping[str, Run], qrels: Qrels, select: NegativeSelector, *, positive_grade: int = 1) -> list[Run]:
    """Each run's candidate negatives: its hits that `select` takes, for the queries that have positives."""
    selected_runs = []
    for run in runs.values():
        selected = np.zeros(len(run.documents), dtype=bool)
        for row, query in enumerate(run.queries):
            positives = set(_find_positives(qrels.get(query, {}), positive_grade))
            if positives:
                documents = run.documents_of(query)
                selection = set(select(documents, positives))
                selected[run.starts[row] : run.starts[row + 1]] = [document in selection for document in documents]
        starts = np.concatenate(([0], np.cumsum(selected)))[run.starts].astype(np.int64)
        selected_runs.append(Run(run.queries, starts, run.documents[selected], run.scores[selected], run.document_ids, run.tag))
    return selected_runs


def find_near_positives(
    runs: Sequence[Run], qrels: Qrels, positive_grade: int = 1, margin: float | None = None, relative_margin: float | None = None
) -> dict[str, set[str]]:
    """For each query the documents that are likely relevant, as by one of the runs they score too near to a positive: above its score
    minus `margin`, or not below its score minus the part `relative_margin` of its size (Moreira et al. 2024, TopK-PercPos). Of several
    positives the lowest counts. Queries of which no run scores a positive are left out.

    >>> find_near_positives([Run.from_hits({"q": {"a": 10.0, "b": 9.5, "c": 9.0}})], {"q": {"a": 1}}, relative_margin=0.05)["q"] - {"a"}
    {'b'}
    """
    near: dict[str, set[str]] = {}
    for query, grades in qrels.items():
        positives = set(_find_positives(grades, positive_grade))
        for hits in (run.hits(query) for run in runs):
            lowest = min((score for document, score in hits if document in positives), default=None)
            if lowest is None:
                continue
            bound = math.inf if margin is None else lowest - margin
            relative_bound = math.inf if relative_margin is None else lowest - relative_margin * abs(lowest)
            near.setdefault(query, set()).update(document for document, score in hits if score > bound or score >= relative_bound)
    return near


def mine_negatives(
    runs: Mapping[str, Run],
    qrels: Qrels,
    select: NegativeSelector,
    counts: MiningCounts,
    *,
    positive_grade: int = 1,
    negative_grade: int = 0,
    keep_own: bool = False,
    excluded: Mapping[str, Mapping[str, Collection[str]]] = MappingProxyType({}),
    teacher: Run | None = None,
    max_negatives: int | None = None,
    seed: int = 0,
) -> Iterator[Example]:
    """One example per judged query that has positives and negatives; updates the counts.

    A positive is a document of grade `positive_grade` or better. Queries that only the runs have count as without positives.
    No negatives are judged documents of a better grade than `negative_grade`, the document with the id of the query (as in ArguAna)
    unless `keep_own`, and those that `excluded` has for the query, by the name of their count. Of the others, at most `max_negatives` are
    sampled by `seed` and the query, and stay in their order; those that `teacher` has no score of are counted.
    """
    run_queries = dict.fromkeys(query for run in runs.values() for query in run.queries)
    counts.without_positives += len(run_queries.keys() - qrels.keys())
    for query, grades in qrels.items():
        positives = _find_positives(grades, positive_grade)
        if not positives:
            counts.without_positives += 1
        elif query not in run_queries:
            counts.without_hits += 1
        else:
            reasons = {name: documents.get(query, ()) for name, documents in excluded.items()}
            reasons |= {"with_grades": {document for document, grade in grades.items() if grade > negative_grade}}
            reasons |= {} if keep_own else {"own_documents": {query, *reasons.get("own_documents", ())}}
            negatives = pool_negatives(runs, query, set(positives), select)
            for name, documents in reasons.items():
                absent = [document for document in negatives if document in documents]
                setattr(counts, name, getattr(counts, name) + len(absent))
                negatives = {document: sources for document, sources in negatives.items() if document not in documents}
            if not negatives:
                counts.without_negatives += 1
                continue
            counts.mined += 1
            counts.unfiltered += "near_positives" in excluded and query not in excluded["near_positives"]
            negatives = {document: negatives[document] for document in _sample(list(negatives), max_negatives, f"{seed} {query}")}
            counts.unscored += 0 if teacher is None else len(negatives.keys() - set(teacher.documents_of(query)))
            provenance = (
                [{"run": name, "rank": rank, "score": trim_score(score)} for name, rank, score in sources] for sources in negatives.values()
            )
            yield Example(query, tuple(positives), tuple(negatives), tuple(provenance))


def _sample(documents: list[str], size: int | None, seed: str) -> list[str]:
    """A random sample in the order of the documents; all of them if there are no more than `size`."""
    if size is None or len(documents) <= size:
        return documents
    return [documents[position] for position in sorted(random.Random(seed).sample(range(len(documents)), size))]


def _find_positives(grades: Mapping[str, int], positive_grade: int) -> list[str]:
    return [document for document, grade in grades.items() if grade >= positive_grade]
