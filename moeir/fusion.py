"""Several ranked lists become one: what a score counts, and what a missing document is worth.

A formula takes one query's lists, each (documents, scores) with the best first, and returns the union, unordered, with
one score per document; sums run in float64, in the order of the lists, and are rounded to float32. With `apart` the scores
are those that each list gives instead, not yet added: float64, a row for each list.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain, repeat
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from moeir.errors import UsageError
from moeir.records.runs import Run

Hits: TypeAlias = tuple[NDArray[np.int64], NDArray[np.float32]]
Merge: TypeAlias = Callable[..., Hits]

_Exact: TypeAlias = NDArray[np.float64]


def came_sum(lists: Sequence[Hits], apart: bool = False) -> Hits:
    """Sum of scores; a document missing from a list gets the list's last (K-th) score.

    Cai et al., CAME, §3.4. An empty list contributes nothing.

    >>> lexical = (np.array([4, 7]), np.array([9.0, 5.0], np.float32))
    >>> dense = (np.array([7, 2]), np.array([0.5, 0.25], np.float32))
    >>> documents, scores = came_sum([lexical, dense])
    >>> dict(zip(documents.tolist(), scores.tolist()))
    {2: 5.25, 4: 9.25, 7: 5.5}
    """
    return _summed(lists, _scores, _last, apart)


def combsum(lists: Sequence[Hits], apart: bool = False) -> Hits:
    """Sum of scores; a missing document gets 0.

    Fox and Shaw 1994.

    >>> documents, scores = combsum([(np.array([4, 7]), np.array([9.0, 5.0])), (np.array([7]), np.array([0.5]))])
    >>> dict(zip(documents.tolist(), scores.tolist()))
    {4: 9.0, 7: 5.5}
    """
    return _summed(lists, _scores, _nothing, apart)


def rrf(lists: Sequence[Hits], apart: bool = False, *, constant: float = 60.0) -> Hits:
    """Reciprocal rank fusion: sum of 1 / (constant + rank); a missing document gets 0.

    Cormack, Clarke and Büttcher 2009; ranks from 1.

    >>> documents, scores = rrf([(np.array([4, 7]), np.array([9.0, 5.0])), (np.array([7]), np.array([0.5]))], constant=1)
    >>> dict(zip(documents.tolist(), scores.round(4).tolist()))
    {4: 0.5, 7: 0.8333}
    """

    if not constant >= 0:
        raise UsageError(f"rrf:constant={constant}: expected 0 or more")

    def reciprocals(scores: _Exact) -> _Exact:
        return np.reciprocal(constant + np.arange(1, len(scores) + 1, dtype=np.float64))

    return _summed(lists, reciprocals, _nothing, apart)


def zscore(lists: Sequence[Hits], apart: bool = False) -> Hits:
    """Sum of scores standardised list by list; a missing document gets the list's smallest.

    A list whose scores are all equal counts 0 for every document.

    >>> documents, scores = zscore([(np.array([4, 7]), np.array([9.0, 5.0])), (np.array([7, 2]), np.array([0.5, 0.5]))])
    >>> dict(zip(documents.tolist(), scores.tolist()))
    {2: -1.0, 4: 1.0, 7: -1.0}
    """
    return _summed(lists, _standardised, _last, apart)


def hybrid(
    lists: Sequence[Hits], apart: bool = False, *, alpha: float = 1.0, normalise: str = "none", depth: int = 100
) -> Hits:
    """First + alpha · second, of the best `depth` of each; a document missing from a list gets the list's smallest score.

    Ma et al. 2021, and TASER, §4.1 and app. D. `normalise=centred` first makes (s − (min + max) / 2) / (max − min) of each list's
    scores; where all are equal, each counts 0. Two lists exactly; an empty one contributes nothing.

    >>> dense, bm25 = (np.array([7, 2]), np.array([0.5, 0.25])), (np.array([4, 7]), np.array([9.0, 5.0]))
    >>> documents, scores = hybrid([dense, bm25], alpha=0.5)
    >>> dict(zip(documents.tolist(), scores.tolist()))
    {2: 2.75, 4: 4.75, 7: 3.0}
    """
    if not 0 <= alpha < np.inf:
        raise UsageError(f"hybrid:alpha={alpha}: expected 0 or more")
    if normalise not in ("none", "centred"):
        raise UsageError(f"hybrid:normalise={normalise}: expected none or centred")
    if depth < 1:
        raise UsageError(f"hybrid:depth={depth}: expected at least 1")
    if len(lists) != 2:
        raise UsageError(f"hybrid: expected two runs, found {len(lists)}: first + alpha · second")
    best = [(documents[:depth], scores[:depth]) for documents, scores in lists]
    return _summed(best, _centred if normalise == "centred" else _scores, _last, apart, weights=(1.0, alpha))


def fused(runs: Sequence[Run], merge: Merge, depth: int | None = None, tag: str = "fused") -> Run:
    """The runs merged query by query, the best `depth` kept; a query of any run is a query of the result.

    A run that lacks a query has an empty list for it. Queries stand in order of first appearance.
    """
    names, translations = _united([run.names for run in runs])
    queries = list(dict.fromkeys(chain.from_iterable(run.queries for run in runs)))
    merged = [merge(_lists(runs, translations, query)) for query in queries]
    return Run.from_columns(
        queries,
        np.repeat(np.arange(len(queries)), [len(documents) for documents, _ in merged]),
        names,
        np.concatenate([np.empty(0, np.int64), *(documents for documents, _ in merged)]),
        np.concatenate([np.empty(0, np.float32), *(scores for _, scores in merged)]),
        tag,
    ).top(len(names) if depth is None else depth)


def _united(lists: Sequence[list[str]]) -> tuple[list[str], list[NDArray[np.int64]]]:
    if all(names == lists[0] for names in lists):
        return (lists[0], [np.arange(len(lists[0]))] * len(lists)) if lists else ([], [])
    names = list(dict.fromkeys(sorted(chain.from_iterable(lists))))  # each list is sorted: a merge, not a sort
    place = {name: code for code, name in enumerate(names)}
    return names, [np.fromiter(map(place.__getitem__, own), np.int64, len(own)) for own in lists]


def _lists(runs: Sequence[Run], translations: Sequence[NDArray[np.int64]], query: str) -> list[Hits]:
    lists = []
    for run, translation in zip(runs, translations, strict=True):
        place = run.places.get(query)
        documents, scores = (np.empty(0, np.int64), np.empty(0, np.float32)) if place is None else run.row(place)
        lists.append((translation[documents], scores))
    return lists


def _summed(
    lists: Sequence[Hits],
    worth: Callable[[_Exact], _Exact],
    missing: Callable[[_Exact], float],
    apart: bool,
    weights: Iterable[float] = repeat(1.0),
) -> Hits:
    """The one place that decides what a document counts in a list, and what it counts where it is missing."""
    documents = np.unique(np.concatenate([np.empty(0, np.int64), *(found for found, _ in lists)]))
    columns = np.zeros((len(lists), len(documents)))
    for column, (found, scores), weight in zip(columns, lists, weights, strict=False):
        if len(found):
            values = worth(np.asarray(scores, dtype=np.float64))
            column[:] = missing(values)
            column[np.searchsorted(documents, found)] = values
            column *= weight
    if apart:
        return documents, columns  # type: ignore[return-value]
    total = np.zeros(len(documents))
    for column in columns:
        total += column
    return documents, total.astype(np.float32)


def _scores(scores: _Exact) -> _Exact:
    return scores


def _standardised(scores: _Exact) -> _Exact:
    if scores[0] == scores[-1]:  # ranked, so all are equal: a spread of rounding errors must not be blown up
        return np.zeros_like(scores)
    return (scores - float(scores.mean())) / float(scores.std())


def _centred(scores: _Exact) -> _Exact:
    spread = scores[0] - scores[-1]  # ranked: the largest stands first
    return (scores - (scores[0] + scores[-1]) / 2) / spread if spread else np.zeros_like(scores)


def _last(values: _Exact) -> float:
    return float(values[-1])


def _nothing(values: _Exact) -> float:
    return 0.0
