from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from moeir.analysis import histograms
from tests.oracles import analysis


@given(some.lists(some.integers(0, 700), min_size=1), some.integers(1, 30))
def test_lengths_are_all_counted_in_classes_of_a_round_width(lengths, classes):
    bins = histograms.length_histogram(Counter(lengths), classes)
    assert len(bins) <= classes and bins[0][0] == 0 and sum(count for _, _, count, _ in bins) == len(lengths)
    width = bins[0][1]
    assert str(width).rstrip("0") in ("1", "2", "5")
    for index, (low, high, count, share) in enumerate(bins):
        assert (low, high) == (index * width, (index + 1) * width)
        assert count == analysis.count_between(lengths, low, high, False) and share == pytest.approx(count / len(lengths))


@given(some.lists(some.integers(-8, 8), min_size=1), some.integers(1, 6))
def test_scores_are_counted_between_the_ends(numbers, classes):
    scores, low, high = np.array(numbers, dtype=np.float32), min(numbers), max(numbers)
    bins = histograms.score_histogram(scores, low, high, classes)
    assert len(bins) == classes and sum(count for _, _, count, _ in bins) == len(numbers)
    if low < high:
        for index, (start, end, count, _) in enumerate(bins):
            near = [number for number in numbers if min(abs(number - start), abs(number - end)) > 1e-9 or index in (0, classes - 1)]
            if len(near) == len(numbers):
                assert count == analysis.count_between(numbers, start, end, index == classes - 1)


@given(some.lists(some.integers(0, 50), min_size=1), some.sampled_from([0.5, 0.95, 1.0]))
def test_a_quantile_is_the_smallest_length_that_reaches_the_share(lengths, share):
    quantile = histograms.length_quantile(Counter(lengths), share)
    assert sum(length <= quantile for length in lengths) >= share * len(lengths) - 1e-9
    assert quantile in lengths and sum(length < quantile for length in lengths) < share * len(lengths)
