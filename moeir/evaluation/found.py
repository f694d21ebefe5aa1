"""Which judged documents a run found, and at what rank, as arrays: the measures that need nothing else, for all queries at once.

The numbers are trec_eval's: a gain is a grade above 0, a document is relevant from grade `rel` on, and what a query does not have counts 0.
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
_Exact: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Found:
    """All judgements, J of Q queries, ordered by query and then by rank.

    queries: their ids [Q]; owners [J]: the place of each judgement's query; grades [J]; ranks [J]: from 1, 0 where the run lacks the
    document.
    """

    queries: Sequence[str]
    owners: _Integers
    grades: _Integers
    ranks: _Integers

    @classmethod
    def of(cls, run: Run, qrels: Qrels) -> "Found":
        """The judgements beside the ranks of what they judge."""
        queries, width = list(qrels), max(len(run.names), 1)
        owners = np.repeat(np.arange(len(queries)), [len(judged) for judged in qrels.values()])
        grades = np.array([grade for judged in qrels.values() for grade in judged.values()], dtype=np.int64)
        documents = Ids.of(run.names).places([document for judged in qrels.values() for document in judged])
        lists = np.array([run.places.get(query, -1) for query in queries], dtype=np.int64)[owners]
        there = (documents >= 0) & (lists >= 0)
        ranks = np.zeros(len(owners), np.int64)
        ranks[there] = _ranks(run, lists[there] * width + documents[there], documents[there], width)
        order = np.lexsort((np.where(ranks > 0, ranks, np.iinfo(np.int64).max), owners))
        return cls(queries, owners[order], grades[order], ranks[order])

    def values(self, measure: Measure) -> dict[str, float]:
        """The measure of every query; the measure is one that `covers` says yes to."""
        options = dict(measure.params)
        kind, rel, cutoff = FORMULAS[str(measure.NAME)], int(options.get("rel", 1)), int(options.get("cutoff", 0) or 2**62)
        return dict(zip(self.queries, kind(self, rel, cutoff).tolist(), strict=True))

    @cached_property
    def ideal(self) -> tuple[_Integers, _Integers, _Exact]:
        """Owners and places, from 1, of all gains in the best order, and the discounted gains themselves."""
        gained = self.grades > 0
        owners, grades = self.owners[gained], self.grades[gained]
        order = np.lexsort((-grades, owners))
        places = _places(owners)
        return owners, places, grades[order] / np.log2(places + 1)

    def sums(self, owners: _Integers, weights: NDArray[Any] | None = None) -> _Exact:
        """Counts, or sums of weights, by query [Q]."""
        return np.bincount(owners, weights, minlength=len(self.queries)).astype(np.float64)

    def relevant(self, rel: int) -> _Exact:
        """How many documents are relevant [Q]."""
        return self.sums(self.owners[self.grades >= rel])

    def hits(self, rel: int, cutoff: int) -> tuple[_Integers, _Integers]:
        """Owners and ranks of the relevant documents found down to a rank."""
        kept = (self.grades >= rel) & (self.ranks > 0) & (self.ranks <= cutoff)
        return self.owners[kept], self.ranks[kept]


def covers(measure: Measure) -> bool:
    """Whether the measure is worked out here, with its options."""
    plain = set(measure.params) <= {"cutoff", "rel"} and (measure.NAME != "nDCG" or set(measure.params) <= {"cutoff"})
    return measure.NAME in FORMULAS and plain


def _ndcg(found: Found, rel: int, cutoff: int) -> _Exact:
    kept = (found.grades > 0) & (found.ranks > 0) & (found.ranks <= cutoff)
    gains = found.sums(found.owners[kept], found.grades[kept] / np.log2(found.ranks[kept] + 1))
    owners, places, best = found.ideal
    return _over(gains, found.sums(owners[places <= cutoff], best[places <= cutoff]))


def _average_precision(found: Found, rel: int, cutoff: int) -> _Exact:
    owners, ranks = found.hits(rel, cutoff)
    return _over(found.sums(owners, _places(owners) / ranks), found.relevant(rel))


def _reciprocal_rank(found: Found, rel: int, cutoff: int) -> _Exact:
    owners, ranks = found.hits(rel, cutoff)
    first = _places(owners) == 1
    return found.sums(owners[first], 1.0 / ranks[first])


def _recall(found: Found, rel: int, cutoff: int) -> _Exact:
    return _over(found.sums(found.hits(rel, cutoff)[0]), found.relevant(rel))


def _precision(found: Found, rel: int, cutoff: int) -> _Exact:
    return found.sums(found.hits(rel, cutoff)[0]) / cutoff


def _success(found: Found, rel: int, cutoff: int) -> _Exact:
    return (found.sums(found.hits(rel, cutoff)[0]) > 0).astype(np.float64)


def _r_precision(found: Found, rel: int, cutoff: int) -> _Exact:
    owners, ranks = found.hits(rel, cutoff)
    relevant = found.relevant(rel)
    return _over(found.sums(owners[ranks <= relevant[owners]]), relevant)


FORMULAS: dict[str, Callable[[Found, int, int], _Exact]] = {
    "nDCG": _ndcg,
    "AP": _average_precision,
    "RR": _reciprocal_rank,
    "R": _recall,
    "P": _precision,
    "Success": _success,
    "Rprec": _r_precision,
}


def _ranks(run: Run, keys: _Integers, documents: _Integers, width: int) -> _Integers:
    """The ranks of documents in lists, both in one number, list · width + document; 0 where the list lacks the document."""
    judged = np.zeros(width, dtype=bool)
    judged[documents] = True
    rows = np.flatnonzero(judged[run.documents]) if len(documents) else np.empty(0, np.int64)  # few, of all that were found
    lists = np.searchsorted(run.starts, rows, side="right") - 1
    held = lists * width + run.documents[rows]
    order = np.argsort(held)
    places = np.searchsorted(held[order], keys)
    places[places == len(held)] = 0
    ranks = np.zeros(len(keys), np.int64)
    if len(held):
        own = order[places]
        ranks = np.where(held[own] == keys, rows[own] - run.starts[lists[own]] + 1, 0)
    return ranks


def _places(owners: _Integers) -> _Integers:
    """Where each stands among those of its owner, from 1; owners stand together."""
    heads = np.flatnonzero(np.diff(owners, prepend=-1))
    return np.arange(1, len(owners) + 1) - np.repeat(heads, np.diff(np.append(heads, len(owners))))


def _over(values: _Exact, totals: _Exact) -> _Exact:
    return np.divide(values, totals, out=np.zeros_like(values), where=totals > 0)
