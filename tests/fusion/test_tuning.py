import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from moeir.fusion import tuning
from moeir.records.runs import Run


def mean_scorer(value):
    """Scorer of weights that fails if any are scored twice."""
    evaluated = set()

    def means(steps):
        assert not evaluated & set(steps) and len(set(steps)) == len(steps)
        evaluated.update(steps)
        return [value([float(weight) for weight in step.split("+")]) for step in steps]

    return means


@given(st.lists(st.floats(0.02, 50), min_size=2, max_size=4))
def test_a_search_finds_a_peak_and_is_never_below_its_start(peak):
    def value(weights):
        return -sum((np.log(max(weight, 1e-9)) - np.log(best)) ** 2 for weight, best in zip(weights, peak, strict=True))

    best, tried = tuning.coordinate_search([[1.0] * len(peak)], mean_scorer(value))
    assert tried[best] == max(tried.values()) >= tried["+".join(["1"] * len(peak))]
    assert value([float(weight) for weight in best.split("+")]) > -0.02 * len(peak)


def test_a_run_that_only_harms_gets_nothing_and_not_all_do():
    best, _ = tuning.coordinate_search([[1, 1]], mean_scorer(lambda weights: weights[0] - weights[1] if weights[0] else -1e9))
    assert best.endswith("+0")
    assert tuning.coordinate_search([[1, 1]], mean_scorer(lambda weights: -sum(weights)))[0] != "0+0"


def test_where_nothing_is_better_the_first_start_stays():
    assert tuning.coordinate_search([[1, 1], [2, 3]], mean_scorer(lambda weights: 0.5))[0] == "1+1"
    assert tuning.coordinate_search([[1, 1], [2, 3]], mean_scorer(lambda weights: float(weights == [2, 3])))[0] == "2+3"
    assert tuning.format_weights([1e7, 1e-9]) == "1e07+1e-09"


def test_a_start_gives_all_lists_one_range_and_leaves_those_without_a_range():
    runs = [Run.from_hits({"q": {"a": 3.0, "b": 1.0}, "r": {"a": 6.0, "b": 0.0}}), Run.from_hits({"q": {"a": 3.0}, "r": {"b": 7.0}})]
    assert tuning._initial_weights(runs) == [[1.0, 1.0], [0.25, 1.0]]


def test_every_factor_can_be_undone_and_reaches_any_weight_within_an_eighth_of_a_power_of_two():
    for factors in (tuning.COARSE_FACTORS[1:], tuning.FINE_FACTORS):
        exponents = [math.log2(factor) for factor in factors]
        assert exponents == sorted(exponents) and np.allclose(exponents, [-exponent for exponent in reversed(exponents)])
    assert tuning.COARSE_FACTORS[0] == 0.0, "a run can be left out"

    def near(texts):
        return [-abs(math.log2(max(float(text.split("+")[1]), 1e-9) / 5.3)) for text in texts]

    best, _ = tuning.coordinate_search([[1, 1]], near)
    assert near([best])[0] >= -1 / 8
