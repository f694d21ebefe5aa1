import numpy as np
import pytest
from scipy import stats

from moeir.errors import DataError
from moeir.evaluation.significance import paired_t


def by_query(values):
    return {f"q{number}": float(value) for number, value in enumerate(values)}


def test_p_values_are_scipys():
    generator = np.random.default_rng(0)
    for size in (2, 3, 10, 1000):
        first, second = generator.random((2, size))
        assert paired_t(by_query(first), by_query(second)) == pytest.approx(stats.ttest_rel(first, second).pvalue, rel=1e-9)


def test_queries_are_paired_by_name():
    first, second = {"a": 1.0, "b": 0.5, "c": 0.1}, {"c": 0.3, "a": 0.2, "b": 0.4}
    assert paired_t(first, second) == pytest.approx(stats.ttest_rel([1.0, 0.5, 0.1], [0.2, 0.4, 0.3]).pvalue)


def test_without_a_difference_nothing_speaks_against_chance():
    assert paired_t(by_query([0.1, 0.2]), by_query([0.1, 0.2])) == 1.0
    assert paired_t(by_query([0.1]), by_query([0.2])) == 1.0
    assert paired_t({}, {}) == 1.0
    assert paired_t(by_query([0.5, 0.5]), by_query([0.25, 0.25])) == 0.0


def test_other_queries_are_refused():
    with pytest.raises(DataError, match="the same queries on both sides; 2 stand on one side only"):
        paired_t({"a": 1.0, "b": 1.0}, {"a": 1.0, "c": 1.0})
