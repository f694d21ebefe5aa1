"""Histograms with bins of equal width: lengths of texts, scores of documents."""

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from moeir.analysis.result import AnalysisResult, Plot
from moeir.records.qrels import Qrels
from moeir.records.runs import Run, Scores

Array: TypeAlias = "np.ndarray[Any, Any]"
Bin = tuple[float, float, int, float]


def length_histogram(counts: Counter[int], bins: int) -> list[Bin]:
    """Histogram of text lengths in at most `bins` bins of a round width: from, to (exclusive), count, share.

    >>> length_histogram(Counter({1: 2, 4: 1, 11: 1}), bins=3)
    [(0, 5, 3, 0.75), (5, 10, 0, 0.0), (10, 15, 1, 0.25)]
    """
    total, longest = counts.total(), max(counts)
    width = _round_width((longest + 1) / bins)
    bin_counts = [0] * (longest // width + 1)
    for length, count in counts.items():
        bin_counts[length // width] += count
    return [(index * width, (index + 1) * width, count, count / total) for index, count in enumerate(bin_counts)]


def score_histogram(numbers: Array, low: float, high: float, bins: int) -> list[Bin]:
    """Histogram of numbers [n] in `bins` equal bins from `low` to `high`, which belongs to the last bin: from, to, count, share.

    >>> score_histogram(np.array([0.0, 0.5, 0.9, 1.0]), 0.0, 1.0, bins=2)
    [(0.0, 0.5, 1, 0.25), (0.5, 1.0, 3, 0.75)]
    """
    counts, edges = np.histogram(numbers, bins, range=(low, high))
    ends = edges.tolist()
    return [(ends[index], ends[index + 1], count, count / max(1, len(numbers))) for index, count in enumerate(counts.tolist())]


def length_quantile(counts: Counter[int], share: float) -> int:
    """Smallest length that this share of the texts does not exceed.

    >>> length_quantile(Counter({1: 5, 2: 4, 9: 1}), 0.5), length_quantile(Counter({1: 5, 2: 4, 9: 1}), 0.95)
    (1, 9)
    """
    target, reached = share * counts.total(), 0
    for length in sorted(counts):
        reached += counts[length]
        if reached >= target - 1e-9:
            return length
    raise AssertionError("a share is at most 1")


def _round_width(least: float) -> int:
    """First of 1, 2, 5, 10, 20, 50, … that is at least `least`."""
    power = 10 ** max(0, math.floor(math.log10(max(1.0, least))))
    return int(next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least))


def analyze_lengths(counts_by_side: Mapping[str, Counter[int]], unit: str, bins: int) -> AnalysisResult:
    """Length histograms of queries and documents, in tokens or words as `unit` says."""
    rows: list[list[Any]] = []
    marks: list[tuple[Any, ...]] = []
    for side, counts in counts_by_side.items():
        histogram = length_histogram(counts, bins)
        median, p95 = (length_quantile(counts, share) for share in (0.5, 0.95))
        title = f"{side}: half have {median} {unit} or fewer, 95 % {p95}"
        rows += [[side, unit, *one] for one in histogram]
        marks += [(title, side, low, high, number) for low, high, number, _ in histogram]
    return AnalysisResult(["side", "unit", "from", "to", "texts", "share"], rows, Plot("steps", marks, x_label=unit, y_label="texts"))


def analyze_scores(runs: Mapping[str, Run], qrels: Qrels | None, bins: int) -> AnalysisResult:
    """Score histogram of each run; with judgements, relevant documents apart from others."""
    rows: list[list[Any]] = []
    for name, run in runs.items():
        scores_by_kind = _split_scores(run, qrels)
        all_scores = np.concatenate(list(scores_by_kind.values()))
        for kind, values in scores_by_kind.items():
            histogram = score_histogram(values, float(all_scores.min()), float(all_scores.max()), bins)
            rows += [[name, kind, *one] for one in histogram]
    marks = [(name, kind, low, high, share) for name, kind, low, high, _, share in rows]
    plot = Plot("steps", marks, x_label="score", y_label="share of documents")
    return AnalysisResult(["run", "documents", "from", "to", "count", "share"], rows, plot)


def _split_scores(run: Run, qrels: Qrels | None) -> dict[str, Scores]:
    """All scores of a run; with judgements, those of relevant and of other documents of judged queries."""
    if qrels is None:
        return {"all": run.scores}
    relevant = run.relevant_hits(qrels)
    judged = np.repeat(np.array([query in qrels for query in run.queries], dtype=bool), np.diff(run.starts))
    return {"answer": run.scores[relevant], "other": run.scores[judged & ~relevant]}
