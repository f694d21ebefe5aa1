"""Range of a measure over all orders of documents with equal scores."""

from collections.abc import Collection
from dataclasses import replace

import numpy as np
from ir_measures import Measure
from numpy.typing import NDArray

from moeir.errors import UsageError
from moeir.evaluation import measures
from moeir.evaluation.found import JudgedRanks, is_native
from moeir.records.qrels import Qrels
from moeir.records.runs import Run


def tie_ranges(run: Run, qrels: Qrels, wanted: Collection[Measure]) -> dict[str, tuple[float, float]]:
    """Smallest and largest mean of each measure over all orders of tied documents.

    Tied documents in ascending order of grade give the minimum of every query, in descending order its maximum (nDCG, AP, RR, R, P,
    Success and Rprec never decrease when a better document moves up).
    """
    for measure in wanted:
        if not is_native(measure):
            raise UsageError(f"--ties: {measure}: not known over orders of ties; nDCG, AP, RR, R, P and Success are")
    grades = _hit_grades(run, qrels)
    least, most = (measures.aggregate_values(measures.evaluate_run(_reorder_ties(run, sign * grades), qrels, wanted)) for sign in (1, -1))
    return {name: (least[name], most[name]) for name in least}


def count_queries_with_ties(run: Run) -> int:
    """Number of lists with two documents of equal score."""
    tied = run.scores[1:] == run.scores[:-1]
    inner = np.ones(len(run.scores), dtype=bool)
    inner[run.starts[run.starts < len(run.scores)]] = False  # the first hit of a list has no predecessor
    rows = np.flatnonzero(np.append(False, tied) & inner) if len(run.scores) else np.empty(0, np.int64)
    return len(set((np.searchsorted(run.starts, rows, side="right") - 1).tolist()))


def _hit_grades(run: Run, qrels: Qrels) -> NDArray[np.int64]:
    """Grade of every hit [n]; 0 if unjudged."""
    judged = JudgedRanks.from_run(run, qrels)
    retrieved = judged.ranks > 0
    lists = np.array([run.query_rows.get(query, 0) for query in judged.queries], dtype=np.int64)[judged.query_rows[retrieved]]
    grades = np.zeros(len(run.scores), np.int64)
    grades[run.starts[lists] + judged.ranks[retrieved] - 1] = judged.grades[retrieved]
    return grades


def _reorder_ties(run: Run, keys: NDArray[np.int64]) -> Run:
    """The run with documents of equal score in ascending order of their keys."""
    begins = np.ones(len(run.scores), dtype=bool)
    begins[1:] = run.scores[1:] != run.scores[:-1]
    begins[run.starts[run.starts < len(begins)]] = True
    order = np.lexsort((keys, np.cumsum(begins)))
    return replace(run, documents=run.documents[order], scores=run.scores[order])
