"""Score lists of one run, and the normalisations and alignment that fusion formulas are made of.

The formulas choose from these: how a score is normalised, and what a document missing from a list is worth (`missing_scores`,
`missing_reciprocal_ranks`, `zero_for_missing`, or the list's last score).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, repeat
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from moeir.records.runs import Run, limit_depth, mask_within_depth

Hits: TypeAlias = tuple[NDArray[np.int64], NDArray[np.float32]]  # one query's documents and scores, best first
Float64s: TypeAlias = NDArray[np.float64]
RankedLists: TypeAlias = "Sequence[Hits | ScoreLists]"
Scorer: TypeAlias = "Callable[[ScoreLists], Float64s]"


@dataclass(frozen=True, eq=False)
class ScoreLists:
    """The ranked lists of one run for Q queries, concatenated: starts [Q+1], documents and scores [n].

    The same document has another number for each query, i · width + its code for query i. `queries` holds the query ids, if there are any.
    `depth` is K, the depth that the lists, or each list [Q], were searched to: a list with fewer hits is whole.
    """

    documents: NDArray[np.int64]
    scores: Float64s
    starts: NDArray[np.int64]
    width: int
    depth: int | NDArray[np.int64]
    queries: Sequence[str] = ()

    @classmethod
    def from_hits(cls, hits: "Hits | ScoreLists", depth: int | NDArray[np.int64] | None = None) -> "ScoreLists":
        """Score lists of one query's hits, searched to `depth`, else to their number; `ScoreLists` are returned unchanged."""
        if isinstance(hits, ScoreLists):
            return hits
        documents, scores = (np.asarray(column) for column in hits)
        starts = np.array([0, len(documents)])
        return cls(documents.astype(np.int64), scores.astype(np.float64), starts, 2**62, len(documents) if depth is None else depth)

    @classmethod
    def from_run(cls, run: Run, codes: NDArray[np.int32], queries: Sequence[str], width: int) -> "ScoreLists":
        """A run's lists for some queries, empty where it lacks the query; `codes` maps its document codes to those of all runs."""
        query_rows = [run.query_rows.get(query) for query in queries]
        bounds = [(0, 0) if row is None else (int(run.starts[row]), int(run.starts[row + 1])) for row in query_rows]
        starts = np.concatenate([[0], np.cumsum([last - first for first, last in bounds])])
        contiguous = all(first == last for (_, last), (first, _) in pairwise(bounds))
        rows = slice(bounds[0][0], bounds[-1][1]) if contiguous and bounds else np.concatenate([np.arange(*each) for each in bounds])
        documents = np.repeat(np.arange(len(queries)) * width, np.diff(starts))
        documents += codes[run.documents[rows]]
        depth = run.list_depth
        if not isinstance(depth, int):
            depth = np.array([1 if row is None else depth[row] for row in query_rows])
        return cls(documents, run.scores[rows].astype(np.float64), starts, width, depth, queries)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Length of each list [Q]."""
        return np.diff(self.starts)

    @property
    def ranks(self) -> NDArray[np.int64]:
        """Rank of every hit, from 1 [n]."""
        return np.arange(1, len(self.documents) + 1) - np.repeat(self.starts[:-1], self.sizes)

    def first_scores(self) -> Float64s:
        """Best score of every list [Q]; 0 for an empty one."""
        return self._scores_at(self.starts[:-1])

    def last_scores(self) -> Float64s:
        """Last score of every list [Q]; 0 for an empty one."""
        return self._scores_at(self.starts[1:] - 1)

    def missing_scores(self) -> Float64s:
        """Score of a document missing from each list [Q]: the K-th score if the list has K hits, else the lower bound of a score.

        A list shorter than K ends where its expert finds nothing: in a sparse list all other documents score 0. So the lower bound is 0,
        or the last score where that is negative. (Cai et al., CAME, §3.4, has lists of K hits only.)

        >>> ScoreLists.from_hits((np.array([4, 7]), np.array([9.0, 5.0])), depth=2).missing_scores().tolist()
        [5.0]
        >>> ScoreLists.from_hits((np.array([4, 7]), np.array([9.0, 5.0])), depth=3).missing_scores().tolist()
        [0.0]
        """
        last = self.last_scores()
        return np.where(self.sizes >= self.depth, last, np.minimum(last, 0.0))

    def sum_per_list(self, values: NDArray[Any]) -> Float64s:
        """Sum the values of hits [n] per list [Q]."""
        total = np.zeros(len(self.starts) - 1)
        full = self.sizes > 0
        if full.any():
            total[full] = np.add.reduceat(values, self.starts[:-1][full])
        return total

    def top(self, depth: int) -> "ScoreLists":
        """The first `depth` hits of every list."""
        within_depth, starts = mask_within_depth(self.starts, depth)
        columns = self.documents[within_depth], self.scores[within_depth]
        return ScoreLists(*columns, starts, self.width, limit_depth(depth, self.depth), self.queries)

    def _scores_at(self, rows: NDArray[np.int64]) -> Float64s:
        ends = np.zeros(len(rows))
        full = self.sizes > 0
        ends[full] = self.scores[rows[full]]
        return ends


def align(lists: RankedLists, score: Scorer, missing: Scorer, weights: Iterable[float] = repeat(1.0)) -> tuple[NDArray[np.int64], Float64s]:
    """The union of the documents [n], ascending, and each list's contributions [E, n]: `score` of its hits, `missing` elsewhere."""
    stacks = [ScoreLists.from_hits(one) for one in lists]
    documents, positions = np.unique(np.concatenate([np.empty(0, np.int64), *(one.documents for one in stacks)]), return_inverse=True)
    columns, first = np.zeros((len(stacks), len(documents))), 0
    for column, one, weight in zip(columns, stacks, weights, strict=False):
        values = score(one)
        column[:] = missing(replace(one, scores=values))[documents // one.width]
        column[positions[first : first + len(values)]] = values
        column *= weight
        first += len(values)
    return documents, columns


def combine(documents: NDArray[np.int64], columns: Float64s, apart: bool) -> Hits:
    """The result of a formula: the sum of the rows, or the rows themselves if `apart`."""
    if apart:
        return documents, columns  # type: ignore[return-value]
    total = np.zeros(len(documents))
    for column in columns:
        total += column
    return documents, total.astype(np.float32)


def fuse(
    lists: RankedLists, score: Scorer, missing: Scorer, apart: bool, weights: Iterable[float] = repeat(1.0), *, maximum: bool = False
) -> Hits:
    """`combine` of what `align` gives; with `maximum` only a document's largest score counts, the first of equals."""
    documents, columns = align(lists, score, missing, weights)
    if maximum and len(columns):
        columns = np.where(np.arange(len(columns))[:, None] == columns.argmax(axis=0), columns, 0.0)
    return combine(documents, columns, apart)


def raw_scores(one: ScoreLists) -> Float64s:
    """Unchanged scores."""
    return one.scores


def reciprocal_ranks(one: ScoreLists, constant: float = 0.0) -> Float64s:
    """1 / (constant + rank)."""
    return np.reciprocal(constant + one.ranks.astype(np.float64))


def standardise(one: ScoreLists) -> Float64s:
    """(s − mean) / standard deviation."""
    count = np.maximum(one.sizes, 1)
    deviations = one.scores - np.repeat(one.sum_per_list(one.scores) / count, one.sizes)
    spread = np.sqrt(one.sum_per_list(deviations * deviations) / count)
    return _divide_by_spread(deviations, one, spread)


def centre(one: ScoreLists) -> Float64s:
    """(s − (min + max) / 2) / (max − min)."""
    first, last = one.first_scores(), one.last_scores()
    return _divide_by_spread(one.scores - np.repeat((first + last) / 2, one.sizes), one, first - last)


def minmax(one: ScoreLists) -> Float64s:
    """(s − min) / (max − min)."""
    return _divide_by_spread(one.scores - np.repeat(one.last_scores(), one.sizes), one, one.first_scores() - one.last_scores())


def _divide_by_spread(values: Float64s, one: ScoreLists, spread: Float64s) -> Float64s:
    """Values divided by their list's spread; 0 where a list's scores are all equal, so that rounding errors are not amplified."""
    is_flat = one.first_scores() == one.last_scores()
    return np.where(np.repeat(is_flat, one.sizes), 0.0, values / np.repeat(np.where(is_flat, 1.0, spread), one.sizes))


def missing_reciprocal_ranks(one: ScoreLists) -> Float64s:
    """1 / K for a missing document [Q], K the depth of the search; 0 for an empty list."""
    return np.where(one.sizes > 0, 1.0 / np.maximum(one.depth, 1), 0.0)


def zero_for_missing(one: ScoreLists) -> Float64s:
    """0 for a missing document [Q]."""
    return np.zeros(len(one.sizes))
