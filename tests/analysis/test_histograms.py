from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from moeir.analysis import histograms
from tests.oracles import analysis


@given(some.lists(some.integers(0, 700), min_size=1), some.integers(1, 30))
def test_lengths_are_all_counted_in_classes_of_a_round_width(lengths, classes):
    found = histograms.lengths(Counter(lengths), classes)
    assert len(found) <= classes and found[0][0] == 0 and sum(count for _, _, count, _ in found) == len(lengths)
    width = found[0][1]
    assert str(width).rstrip("0") in ("1", "2", "5")
    for place, (low, high, count, share) in enumerate(found):
        assert (low, high) == (place * width, (place + 1) * width)
        assert count == analysis.between(lengths, low, high, False) and share == pytest.approx(count / len(lengths))


@given(some.lists(some.integers(-8, 8), min_size=1), some.integers(1, 6))
def test_scores_are_counted_between_the_ends(numbers, classes):
    scores, low, high = np.array(numbers, dtype=np.float32), min(numbers), max(numbers)
    found = histograms.scores(scores, low, high, classes)
    assert len(found) == classes and sum(count for _, _, count, _ in found) == len(numbers)
    if low < high:
        for place, (start, end, count, _) in enumerate(found):
            near = [number for number in numbers if min(abs(number - start), abs(number - end)) > 1e-9 or place in (0, classes - 1)]
            if len(near) == len(numbers):
                assert count == analysis.between(numbers, start, end, place == classes - 1)


@given(some.lists(some.integers(0, 50), min_size=1), some.sampled_from([0.5, 0.95, 1.0]))
def test_a_quantile_is_the_smallest_length_that_reaches_the_share(lengths, share):
    found = histograms.quantile(Counter(lengths), share)
    assert sum(length <= found for length in lengths) >= share * len(lengths) - 1e-9
    assert found in lengths and sum(length < found for length in lengths) < share * len(lengths)
