"""Score lists of one run, and the normalisations and alignment that fusion formulas are made of.

Only this module decides how much a score counts and what a missing document is worth.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, repeat
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from moeir.errors import UsageError
from moeir.records import loops
from moeir.records.runs import Run

Hits: TypeAlias = tuple[NDArray[np.int64], NDArray[np.float32]]  # one query's documents and scores, best first
Exact: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Lists:
    """The ranked lists of one run for Q queries, concatenated: starts [Q+1], documents and scores [n].

    A document of query i is coded as i · width + its code, so that all are distinct. `queries` holds the query ids, if there are any.
    """

    documents: NDArray[np.int64]
    scores: Exact
    starts: NDArray[np.int64]
    width: int
    queries: Sequence[str] = ()

    @classmethod
    def of(cls, hits: "Hits | Lists") -> "Lists":
        """Score lists of one query's hits; `ScoreLists` are returned unchanged."""
        if isinstance(hits, Lists):
            return hits
        documents, scores = (np.asarray(column) for column in hits)
        return cls(documents.astype(np.int64), scores.astype(np.float64), np.array([0, len(documents)]), 2**62)

    @classmethod
    def among(cls, run: Run, codes: NDArray[np.int32], queries: Sequence[str], width: int) -> "Lists":
        """A run's lists for some queries, empty where it lacks the query; `codes` maps its document codes to those of all runs."""
        query_rows = [run.places.get(query) for query in queries]
        bounds = [(0, 0) if row is None else (int(run.starts[row]), int(run.starts[row + 1])) for row in query_rows]
        starts = np.concatenate([[0], np.cumsum([last - first for first, last in bounds])])
        contiguous = all(first == last for (_, last), (first, _) in pairwise(bounds))
        rows = slice(bounds[0][0], bounds[-1][1]) if contiguous and bounds else np.concatenate([np.arange(*each) for each in bounds])
        documents = np.repeat(np.arange(len(queries)) * width, np.diff(starts))
        documents += codes[run.documents[rows]]
        return cls(documents, run.scores[rows].astype(np.float64), starts, width, queries)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Length of each list [Q]."""
        return np.diff(self.starts)

    @property
    def ranks(self) -> NDArray[np.int64]:
        """Rank of every hit, from 1 [n]."""
        return np.arange(1, len(self.documents) + 1) - np.repeat(self.starts[:-1], self.sizes)

    def first(self) -> Exact:
        """Best score of every list [Q]; 0 for an empty one."""
        return self._ends(self.starts[:-1])

    def last(self) -> Exact:
        """Last (K-th) score of every list [Q]; 0 for an empty one."""
        return self._ends(self.starts[1:] - 1)

    def spread(self, values: Exact) -> Exact:
        """Repeat one value per list [Q] for each of its hits [n]."""
        return np.repeat(values, self.sizes)

    def sums(self, values: NDArray[Any]) -> Exact:
        """Sum the values of hits [n] per list [Q]."""
        total = np.zeros(len(self.starts) - 1)
        full = self.sizes > 0
        if full.any():
            total[full] = np.add.reduceat(values, self.starts[:-1][full])
        return total

    def best(self, depth: int) -> "Lists":
        """The first `depth` hits of every list."""
        within_depth = self.ranks <= depth
        starts = np.concatenate([[0], np.cumsum(np.minimum(self.sizes, depth))])
        return Lists(self.documents[within_depth], self.scores[within_depth], starts, self.width, self.queries)

    def _ends(self, rows: NDArray[np.int64]) -> Exact:
        ends = np.zeros(len(rows))
        full = self.sizes > 0
        ends[full] = self.scores[rows[full]]
        return ends


def columns(
    lists: Sequence[Hits | Lists],
    score: Callable[[Lists], Exact],
    missing: Callable[[Lists], Exact],
    weights: Iterable[float] = repeat(1.0),
) -> tuple[NDArray[np.int64], Exact]:
    """The union of the documents [n], ascending, and each list's contributions [E, n]: `score` of its hits, `missing` elsewhere."""
    stacks = [Lists.of(one) for one in lists]
    hits = sum(len(one.documents) for one in stacks)
    compiled = loops.among(hits)
    if compiled and stacks and hits.bit_length() + (len(stacks[0].sizes) * stacks[0].width).bit_length() <= 64:
        return _spread(compiled, stacks, score, missing, weights)
    documents = np.concatenate([np.empty(0, np.int64), *(one.documents for one in stacks)])
    documents.sort()
    documents = documents[np.concatenate([[True], documents[1:] != documents[:-1]])[: len(documents)]]
    columns = np.zeros((len(stacks), len(documents)))
    for column, one, weight in zip(columns, stacks, weights, strict=False):
        values = score(one)
        column[:] = missing(replace(one, scores=values))[documents // one.width]
        column[np.searchsorted(documents, one.documents)] = values
        column *= weight
    return documents, columns


def _spread(
    compiled: Any, stacks: list[Lists], score: Callable[[Lists], Exact], missing: Callable[[Lists], Exact], weights: Iterable[float]
) -> tuple[NDArray[np.int64], Exact]:
    """`align` for many hits, by compiled loops: one integer per hit, the document in the high bits and the row in the low ones."""
    offsets, width = np.cumsum([0, *(len(one.documents) for one in stacks)]), stacks[0].width
    keys, first = np.concatenate([one.documents for one in stacks]).view(np.uint64), int(offsets[-1]).bit_length()
    keys <<= np.uint64(first)
    keys |= np.arange(len(keys), dtype=np.uint64)
    keys = compiled.coding.in_order(keys, np.empty_like(keys), first, first + (len(stacks[0].sizes) * width).bit_length())[0]
    values = [score(one) for one in stacks]
    missing_scores = np.array([missing(replace(one, scores=list_scores)) for one, list_scores in zip(stacks, values, strict=True)])
    documents, columns = np.empty(len(keys), np.int64), np.empty((len(stacks), len(keys)))
    count = compiled.ranking.spread(keys, first, width, offsets, np.concatenate(values), missing_scores, documents, columns)
    for column, weight in zip(columns, weights, strict=False):
        column *= weight
    return documents[:count], columns[:, :count]


def added(documents: NDArray[np.int64], columns: Exact, apart: bool) -> Hits:
    """The result of a formula: the sum of the rows, or the rows themselves if `apart`."""
    if apart:
        return documents, columns  # type: ignore[return-value]
    total = np.zeros(len(documents))
    for column in columns:
        total += column
    return documents, total.astype(np.float32)


def largest(documents: NDArray[np.int64], columns: Exact) -> tuple[NDArray[np.int64], Exact]:
    """Keep each document's largest score (the first of equals); the other lists' scores become 0."""
    deciding = np.arange(len(columns))[:, None] == columns.argmax(axis=0) if len(columns) else columns
    return documents, np.where(deciding, columns, 0.0)


def normalised(formula: str, name: str) -> Callable[[Lists], Exact]:
    """The normalisation function called `name`; UsageError for an unknown name."""
    if name not in ("none", "minmax"):
        raise UsageError(f"{formula}:normalise={name}: expected none or minmax")
    return from_0_to_1 if name == "minmax" else scores


def scores(one: Lists) -> Exact:
    """Unchanged scores."""
    return one.scores


def reciprocals(one: Lists, constant: float = 0.0) -> Exact:
    """1 / (constant + rank)."""
    return np.reciprocal(constant + one.ranks.astype(np.float64))


def standardised(one: Lists) -> Exact:
    """(s − mean) / standard deviation."""
    count = np.maximum(one.sizes, 1)
    deviations = one.scores - one.spread(one.sums(one.scores) / count)
    spread = np.sqrt(one.sums(deviations * deviations) / count)
    return _over(deviations, one, spread)


def centred(one: Lists) -> Exact:
    """(s − (min + max) / 2) / (max − min)."""
    return _over(one.scores - one.spread((one.first() + one.last()) / 2), one, one.first() - one.last())


def from_0_to_1(one: Lists) -> Exact:
    """(s − min) / (max − min)."""
    return _over(one.scores - one.spread(one.last()), one, one.first() - one.last())


def _over(values: Exact, one: Lists, spread: Exact) -> Exact:
    """Values divided by their list's spread; 0 where a list's scores are all equal, so that rounding errors are not amplified."""
    is_flat = one.first() == one.last()
    return np.where(one.spread(is_flat), 0.0, values / one.spread(np.where(is_flat, 1.0, spread)))


def nothing(one: Lists) -> Exact:
    """0 for a missing document [Q]."""
    return np.zeros(len(one.sizes))
