"""Mine negatives from runs and judgements, each with its provenance: every run that retrieved it."""

import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TypeAlias

import numpy as np

from moeir.errors import UsageError
from moeir.records.examples import Example, Provenance
from moeir.records.qrels import Qrels
from moeir.records.runs import Run

NegativeSelector: TypeAlias = Callable[[Sequence[str], Collection[str]], list[str]]


@dataclass
class MiningCounts:
    """Counts of queries that gave an example or were skipped, by reason, and of documents excluded because they contain an answer."""

    mined: int = 0
    without_positives: int = 0
    without_hits: int = 0
    without_negatives: int = 0
    with_answers: int = 0


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
) -> dict[str, tuple[Provenance, ...]]:
    """The negatives of one query: documents that `select` takes from each run, interleaved by rank, with their provenance.

    >>> bm25 = Run.from_hits({"q": {"a": 9.0, "b": 8.0}})
    >>> dense = Run.from_hits({"q": {"b": 0.7, "c": 0.5}})
    >>> list(pool_negatives({"bm25": bm25, "dense": dense}, "q", {"a"}, band))
    ['b', 'c']
    """
    hits = {name: run.hits(query) for name, run in runs.items()}
    columns = [select([document for document, _ in run_hits], positives) for run_hits in hits.values()]
    chosen = dict.fromkeys(document for turn in zip_longest(*columns) for document in turn if document is not None)
    sources: dict[str, list[Provenance]] = {document: [] for document in chosen}
    for name, run_hits in hits.items():
        for rank, (document, score) in enumerate(run_hits, 1):
            if document in sources:
                sources[document].append(Provenance(name, rank, score))
    return {document: tuple(entries) for document, entries in sources.items()}


def select_candidates(runs: Mapping[str, Run], qrels: Qrels, select: NegativeSelector, *, positive_grade: int = 1) -> list[Run]:
    """Each run's candidate negatives: its hits that `select` takes, for the queries that have positives."""
    selected_runs = []
    for run in runs.values():
        selected = np.zeros(len(run.documents), dtype=bool)
        for row, query in enumerate(run.queries):
            positives = set(_positives(qrels.get(query, {}), positive_grade))
            if positives:
                documents = run.documents_of(query)
                selection = set(select(documents, positives))
                selected[run.starts[row] : run.starts[row + 1]] = [document in selection for document in documents]
        starts = np.concatenate(([0], np.cumsum(selected)))[run.starts].astype(np.int64)
        selected_runs.append(Run(run.queries, starts, run.documents[selected], run.scores[selected], run.document_ids, run.tag))
    return selected_runs


def mine_negatives(
    runs: Mapping[str, Run],
    qrels: Qrels,
    select: NegativeSelector,
    counts: MiningCounts,
    *,
    positive_grade: int = 1,
    excluded: Mapping[str, Collection[str]] | None = None,
    keep: int | None = None,
    seed: int = 0,
) -> Iterator[Example]:
    """One example per judged query that has positives and negatives; updates the counts.

    A positive is a document of grade `positive_grade` or better. Queries that only the runs have count as without positives.
    Documents listed for a query in `excluded`, such as those that contain an answer, are excluded from its negatives. Of the
    others, at most `keep` are sampled by `seed` and the query, and stay in their order.
    """
    run_queries = dict.fromkeys(query for run in runs.values() for query in run.queries)
    counts.without_positives += len(run_queries.keys() - qrels.keys())
    for query, grades in qrels.items():
        positives = _positives(grades, positive_grade)
        if not positives:
            counts.without_positives += 1
        elif query not in run_queries:
            counts.without_hits += 1
        else:
            pooled = pool_negatives(runs, query, set(positives), select)
            banned = (excluded or {}).get(query, ())
            negatives = {document: sources for document, sources in pooled.items() if document not in banned}
            counts.with_answers += len(pooled) - len(negatives)
            if not negatives:
                counts.without_negatives += 1
                continue
            counts.mined += 1
            negatives = {document: negatives[document] for document in _sample(list(negatives), keep, f"{seed} {query}")}
            yield Example(query, tuple(positives), tuple(negatives), tuple(negatives.values()))


def _sample(documents: list[str], size: int | None, seed: str) -> list[str]:
    """A random sample in the order of the documents; all of them if there are no more than `size`."""
    if size is None or len(documents) <= size:
        return documents
    return [documents[position] for position in sorted(random.Random(seed).sample(range(len(documents)), size))]


def _positives(grades: Mapping[str, int], positive_grade: int) -> list[str]:
    return [document for document, grade in grades.items() if grade >= positive_grade]
