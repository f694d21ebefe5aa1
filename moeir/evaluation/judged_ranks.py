"""Ranks of the judged documents of a run as arrays, and the measures that need nothing else, for all queries at once.

The values are those of trec_eval: the gain is a grade above 0, a document is relevant from grade `rel` on, and a missing list counts 0.
"""

from collections.abc import Sequence
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
NATIVE_MEASURES = ("nDCG", "AP", "RR", "R", "NumRel", "NumQ")


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
        rel, cutoff = int(measure.params.get("rel", 1)), int(measure.params.get("cutoff", 0) or 2**62)
        relevant = self.sum_by_query(self.query_rows[self.grades >= rel])
        retrieved = (self.grades >= rel) & (self.ranks > 0) & (self.ranks <= cutoff)
        owners, ranks = self.query_rows[retrieved], self.ranks[retrieved]
        hit_numbers = _rank_in_groups(owners)  # 1 for the first relevant document of a query
        match str(measure.NAME):
            case "nDCG":
                gains = self.sum_by_query(owners, self.grades[retrieved] / np.log2(ranks + 1))
                ideal_owners, positions, best = self.ideal_gains
                values = _divide_or_zero(gains, self.sum_by_query(ideal_owners[positions <= cutoff], best[positions <= cutoff]))
            case "AP":
                values = _divide_or_zero(self.sum_by_query(owners, hit_numbers / ranks), relevant)
            case "RR":
                values = self.sum_by_query(owners[hit_numbers == 1], 1.0 / ranks[hit_numbers == 1])
            case "R":
                values = _divide_or_zero(self.sum_by_query(owners), relevant)
            case "NumRel":
                values = relevant
            case "NumQ":
                values = np.ones(len(self.queries))
            case name:
                raise ValueError(f"{name} is not among {', '.join(NATIVE_MEASURES)}")
        return dict(zip(self.queries, values.tolist(), strict=True))

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


def is_native(measure: Measure) -> bool:
    """Whether the measure, with its options, is computed here rather than by ir-measures."""
    plain = set(measure.params) <= {"cutoff", "rel"} and (measure.NAME != "nDCG" or set(measure.params) <= {"cutoff"})
    return measure.NAME in NATIVE_MEASURES and plain


def _rank_in_groups(owners: _Integers) -> _Integers:
    """Position of each row among the rows of its query, from 1; rows of a query are contiguous."""
    heads = np.flatnonzero(np.diff(owners, prepend=-1))
    return np.arange(1, len(owners) + 1) - np.repeat(heads, np.diff(np.append(heads, len(owners))))


def _divide_or_zero(values: _Floats, totals: _Floats) -> _Floats:
    return np.divide(values, totals, out=np.zeros_like(values), where=totals > 0)
