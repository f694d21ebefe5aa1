import numpy as np
import pytest
from scipy import stats

from moeir.errors import DataError
from moeir.evaluation.significance import bootstrap, corrected, effect_size, interval, paired_t, randomisation


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


def test_a_randomisation_test_is_that_of_all_signs():
    generator = np.random.default_rng(1)
    first, second = generator.random((2, 10))
    differences = first - second
    signs = np.array(np.meshgrid(*[[-1, 1]] * 10)).reshape(10, -1).T
    exact = (abs(signs @ differences) >= abs(differences.sum()) - 1e-12).mean()
    assert randomisation(by_query(first), by_query(second)) == pytest.approx(exact, abs=0.02)
    assert randomisation(by_query(first), by_query(second)) == randomisation(by_query(second), by_query(first))


@pytest.mark.parametrize("test", [randomisation, bootstrap])
def test_p_values_of_drawn_tests_are_near_students_and_never_zero(test):
    generator = np.random.default_rng(2)
    first = generator.normal(size=200)
    second = first + generator.normal(0.1, 0.7, size=200)
    student = paired_t(by_query(first), by_query(second))
    assert 0.005 < student < 0.5
    assert test(by_query(first), by_query(second)) == pytest.approx(student, abs=0.02)
    assert test(by_query(first), by_query(first + 1 + second / 100)) == pytest.approx(1 / 10_001)
    assert test(by_query([]), by_query([])) == 1.0


def test_an_interval_is_scipys_and_holds_the_mean():
    values = np.random.default_rng(3).random(80)
    low, high = interval(values)
    theirs = stats.bootstrap((values,), np.mean, method="percentile", rng=np.random.default_rng(0)).confidence_interval
    assert (low, high) == (pytest.approx(theirs.low, abs=0.01), pytest.approx(theirs.high, abs=0.01))
    assert low < values.mean() < high


def test_corrections_are_scipys_and_keep_the_order():
    generator = np.random.default_rng(4)
    for size in (1, 2, 7):
        raw = generator.random(size) ** 3
        assert corrected(raw, "bh") == pytest.approx(stats.false_discovery_control(raw))
        assert corrected(raw, "none") == pytest.approx(raw.tolist())
        holm, plain = corrected(raw, "holm"), corrected(raw, "bonferroni")
        assert all(value <= other for value, other in zip(holm, plain, strict=True))
    assert corrected([], "holm") == []


def test_an_effect_has_the_sign_of_second_less_first():
    assert effect_size({"a": 0.0, "b": 0.0}, {"a": 0.5, "b": 0.5}) == float("inf")
    assert effect_size({"a": 1.0, "b": 0.5}, {"a": 0.5, "b": 0.25}) == pytest.approx(-2.1213203)
    assert effect_size({"a": 1.0}, {"a": 1.0}) == 0.0
