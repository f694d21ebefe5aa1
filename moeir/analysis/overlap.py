"""Overlap measures of two ranked lists of one query, and the overlap of each pair of runs."""

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np

from moeir import variants
from moeir.analysis.result import AnalysisResult
from moeir.errors import DataError, UsageError
from moeir.records.runs import Run


def rbo(first: Sequence[str], second: Sequence[str], *, persistence: float = 0.9) -> float:
    """Rank-biased overlap, extrapolated: 1 for equal lists, 0 for lists without a common document.

    Lists may differ in length. Two empty lists are equal; an empty list has nothing in common with another.
    Webber, Moffat and Zobel 2010, eq. 32 (eq. 30 where the lists are equally long).

    >>> round(rbo(["a", "b", "c"], ["b", "a", "d"], persistence=0.9), 4)
    0.63
    """
    if not 0.0 < persistence < 1.0:
        raise UsageError(f"persistence of rank-biased overlap lies between 0 and 1, found {persistence}")
    short, long = sorted((list(first), list(second)), key=len)
    if not short:
        return 1.0 if not long else 0.0
    ranks = {document: rank for rank, document in enumerate(short, 1)}
    deeper_ranks = [max(rank, ranks[document]) for rank, document in enumerate(long, 1) if document in ranks]
    common = np.cumsum(np.bincount(np.array(deeper_ranks, dtype=np.int64), minlength=len(long) + 1))[1:]
    common_at_short, depths = int(common[len(short) - 1]), np.arange(1, len(long) + 1)
    assumed = common_at_short * np.maximum(depths - len(short), 0) / len(short)  # common documents below the end of the short list
    tail = (int(common[-1]) - common_at_short) / len(long) + common_at_short / len(short)
    terms = (1 - persistence) * persistence ** (depths - 1) / depths  # of one common document, at each depth
    return float((common + assumed) @ terms) + tail * persistence ** len(long)


def overlap(first: Sequence[str], second: Sequence[str], *, depth: int = 100) -> float:
    """Share of the top `depth` that two lists have in common, of the longer list where both are shorter.

    >>> overlap(["a", "b", "c"], ["c", "d", "a"], depth=3) == 2 / 3
    True
    """
    if depth < 1:
        raise UsageError(f"overlap:depth={depth}: expected at least 1")
    tops = set(first[:depth]), set(second[:depth])
    return len(tops[0] & tops[1]) / max(len(tops[0]), len(tops[1]), 1)


def analyze_overlap(runs: Mapping[str, Run], spec: str) -> AnalysisResult:
    """Mean overlap, by the measure that `spec` names, of the lists of each pair of runs."""
    compare = variants.bind_variant("analysis.overlap", spec)
    rows = []
    for one, other in combinations(runs, 2):
        common_queries = [query for query in runs[one].queries if query in runs[other].query_rows]
        if not common_queries:
            raise DataError(f"{one} and {other} have no query in common; are they runs of one query set?")
        values = [compare(runs[one].documents_of(query), runs[other].documents_of(query)) for query in common_queries]
        rows.append([one, other, len(common_queries), sum(values) / len(values)])
    return AnalysisResult(["run", "other", "queries", spec], rows)
