"""Histograms with bins of equal width: lengths of texts, scores of documents."""

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np

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


def count_lengths(sizes: Iterable[int]) -> Counter[int]:
    """Number of texts of each length."""
    return Counter(sizes)


def _round_width(least: float) -> int:
    """First of 1, 2, 5, 10, 20, 50, … that is at least `least`."""
    power = 10 ** max(0, math.floor(math.log10(max(1.0, least))))
    return int(next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least))
