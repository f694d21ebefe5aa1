"""Ranks of the judged documents of a run as arrays, and the measures that need nothing else, for all queries at once.

The values are those of trec_eval: the gain is a grade above 0, a document is relevant from grade `rel` on, and a missing list counts 0.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from ir_measures import Measure
from numpy.typing import NDArray

from moeir.records.ids import Ids
from moeir.records.qrels import Qrels
from moeir.records.runs import Run

_Integers: TypeAlias = NDArray[np.int64]
_Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class JudgedRanks:
    """All judgements, J of Q queries, ordered by query and then by rank.

    queries: ids [Q]; query_rows [J]: row of each judgement's query; grades [J]; ranks [J]: from 1, 0 if the run lacks the document.
    """

    queries: Sequence[str]
    query_rows: _Integers
    grades: _Integers
    ranks: _Integers

    @classmethod
    def from_run(cls, run: Run, qrels: Qrels) -> "JudgedRanks":
        """Look up the rank of every judged document in the run."""
        queries, width = list(qrels), max(len(run.document_ids), 1)
        owners = np.repeat(np.arange(len(queries)), [len(judged) for judged in qrels.values()])
        grades = np.array([grade for judged in qrels.values() for grade in judged.values()], dtype=np.int64)
        documents = Ids.from_strings(run.document_ids).lookup([document for judged in qrels.values() for document in judged])
        lists = np.array([run.query_rows.get(query, -1) for query in queries], dtype=np.int64)[owners]
        known = np.flatnonzero((documents >= 0) & (lists >= 0))
        rows = np.flatnonzero(np.isin(run.documents, documents[known]))  # few of all hits
        hit_lists = np.searchsorted(run.starts, rows, side="right") - 1
        hit_keys, keys = hit_lists * width + run.documents[rows], lists[known] * width + documents[known]
        _, hits, judgements = np.intersect1d(hit_keys, keys, assume_unique=True, return_indices=True)
        ranks = np.zeros(len(owners), np.int64)
        ranks[known[judgements]] = rows[hits] - run.starts[hit_lists[hits]] + 1
        order = np.lexsort((np.where(ranks > 0, ranks, np.iinfo(np.int64).max), owners))
        return cls(queries, owners[order], grades[order], ranks[order])

    def compute(self, measure: Measure) -> dict[str, float]:
        """Value of the measure for every query; `is_native(measure)` must be true."""
        options = dict(measure.params)
        kind, rel, cutoff = NATIVE_MEASURES[str(measure.NAME)], int(options.get("rel", 1)), int(options.get("cutoff", 0) or 2**62)
        return dict(zip(self.queries, kind(self, rel, cutoff).tolist(), strict=True))

    @cached_property
    def ideal_gains(self) -> tuple[_Integers, _Integers, _Floats]:
        """Query rows, ranks from 1 and discounted gains of the ideal ranking."""
        gained = self.grades > 0
        owners, grades = self.query_rows[gained], self.grades[gained]
        order = np.lexsort((-grades, owners))
        positions = _rank_in_groups(owners)
        return owners, positions, grades[order] / np.log2(positions + 1)

    def sum_by_query(self, owners: _Integers, weights: NDArray[Any] | None = None) -> _Floats:
        """Counts, or sums of weights, by query [Q]."""
        return np.bincount(owners, weights, minlength=len(self.queries)).astype(np.float64)

    def count_relevant(self, rel: int) -> _Floats:
        """Number of relevant documents [Q]."""
        return self.sum_by_query(self.query_rows[self.grades >= rel])

    def find_relevant_hits(self, rel: int, cutoff: int) -> tuple[_Integers, _Integers]:
        """Query rows and ranks of the relevant documents retrieved within the cutoff."""
        selected = (self.grades >= rel) & (self.ranks > 0) & (self.ranks <= cutoff)
        return self.query_rows[selected], self.ranks[selected]


def is_native(measure: Measure) -> bool:
    """Whether the measure, with its options, is computed here rather than by ir-measures."""
    plain = set(measure.params) <= {"cutoff", "rel"} and (measure.NAME != "nDCG" or set(measure.params) <= {"cutoff"})
    return measure.NAME in NATIVE_MEASURES and plain


def _compute_ndcg(judged: JudgedRanks, rel: int, cutoff: int) -> _Floats:
    selected = (judged.grades > 0) & (judged.ranks > 0) & (judged.ranks <= cutoff)
    gains = judged.sum_by_query(judged.query_rows[selected], judged.grades[selected] / np.log2(judged.ranks[selected] + 1))
    owners, positions, best = judged.ideal_gains
    return _divide_or_zero(gains, judged.sum_by_query(owners[positions <= cutoff], best[positions <= cutoff]))


def _compute_average_precision(judged: JudgedRanks, rel: int, cutoff: int) -> _Floats:
    owners, ranks = judged.find_relevant_hits(rel, cutoff)
    return _divide_or_zero(judged.sum_by_query(owners, _rank_in_groups(owners) / ranks), judged.count_relevant(rel))


def _compute_reciprocal_rank(judged: JudgedRanks, rel: int, cutoff: int) -> _Floats:
    owners, ranks = judged.find_relevant_hits(rel, cutoff)
    first = _rank_in_groups(owners) == 1
    return judged.sum_by_query(owners[first], 1.0 / ranks[first])


def _compute_recall(judged: JudgedRanks, rel: int, cutoff: int) -> _Floats:
    return _divide_or_zero(judged.sum_by_query(judged.find_relevant_hits(rel, cutoff)[0]), judged.count_relevant(rel))


NATIVE_MEASURES: dict[str, Callable[[JudgedRanks, int, int], _Floats]] = {
    "nDCG": _compute_ndcg,
    "AP": _compute_average_precision,
    "RR": _compute_reciprocal_rank,
    "R": _compute_recall,
    "NumRel": lambda judged, rel, cutoff: judged.count_relevant(rel),
    "NumQ": lambda judged, rel, cutoff: np.ones(len(judged.queries)),
}


def _rank_in_groups(owners: _Integers) -> _Integers:
    """Position of each row among the rows of its query, from 1; rows of a query are contiguous."""
    heads = np.flatnonzero(np.diff(owners, prepend=-1))
    return np.arange(1, len(owners) + 1) - np.repeat(heads, np.diff(np.append(heads, len(owners))))


def _divide_or_zero(values: _Floats, totals: _Floats) -> _Floats:
    return np.divide(values, totals, out=np.zeros_like(values), where=totals > 0)
