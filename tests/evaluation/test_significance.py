import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some
from scipy import stats

from moeir.errors import DataError
from moeir.evaluation.significance import confidence_interval, correct_p_values, paired_t_test, randomisation_test
from tests.oracles import reporting


def by_query(values):
    return {f"q{number}": float(value) for number, value in enumerate(values)}


def test_p_values_are_scipys_of_queries_paired_by_name():
    generator = np.random.default_rng(0)
    for size in (2, 3, 10, 1000):
        first, second = generator.random((2, size))
        assert paired_t_test(by_query(first), by_query(second)) == pytest.approx(stats.ttest_rel(first, second).pvalue, rel=1e-9)
    first, second = {"a": 1.0, "b": 0.5, "c": 0.1}, {"c": 0.3, "a": 0.2, "b": 0.4}
    assert paired_t_test(first, second) == pytest.approx(stats.ttest_rel([1.0, 0.5, 0.1], [0.2, 0.4, 0.3]).pvalue)


def test_without_a_difference_nothing_speaks_against_chance_and_other_queries_are_refused():
    for first, second in (([0.1, 0.2], [0.1, 0.2]), ([0.1], [0.2]), ([], [])):
        assert paired_t_test(by_query(first), by_query(second)) == 1.0
    assert paired_t_test(by_query([0.5, 0.5]), by_query([0.25, 0.25])) == 0.0
    with pytest.raises(DataError, match="the same queries on both sides; 2 are on one side only"):
        paired_t_test({"a": 1.0, "b": 1.0}, {"a": 1.0, "c": 1.0})


def test_a_randomisation_test_is_that_of_all_signs():
    generator = np.random.default_rng(1)
    first, second = generator.random((2, 10))
    differences = first - second
    signs = np.array(np.meshgrid(*[[-1, 1]] * 10)).reshape(10, -1).T
    exact = (abs(signs @ differences) >= abs(differences.sum()) - 1e-12).mean()
    assert randomisation_test(by_query(first), by_query(second)) == pytest.approx(exact, abs=1e-12)  # 1,024 flips are all tried
    assert randomisation_test(by_query(first), by_query(second)) == randomisation_test(by_query(second), by_query(first))


def test_p_values_of_drawn_signs_are_near_students_never_zero_and_those_of_the_seed():
    generator = np.random.default_rng(2)
    first = generator.normal(size=200)
    second = first + generator.normal(0.1, 0.7, size=200)
    drawn, student = (test(by_query(first), by_query(second)) for test in (randomisation_test, paired_t_test))
    assert 0.005 < student < 0.5 and drawn == pytest.approx(student, abs=0.02)
    assert drawn == randomisation_test(by_query(first), by_query(second), 42) != randomisation_test(by_query(first), by_query(second), 41)
    assert randomisation_test(by_query(first), by_query(first + 1 + second / 100)) == pytest.approx(1 / 10_001)
    assert randomisation_test(by_query([]), by_query([])) == 1.0
    assert randomisation_test(by_query([0.1]), by_query([0.9])) == 1.0, "one query decides nothing"


def test_an_interval_is_scipys():
    """By hand: 2, 4, 6 have mean 4 and standard error 2 / √3; t of 2 degrees at 97.5 % is 4.302653."""
    reach = 4.302653 * 2 / 3**0.5
    assert confidence_interval([2.0, 4.0, 6.0]) == pytest.approx((4 - reach, 4 + reach), rel=1e-6)
    values = 10 * np.random.default_rng(3).random(80)
    assert confidence_interval(values) == pytest.approx(stats.t.interval(0.95, 79, loc=values.mean(), scale=stats.sem(values)))
    assert confidence_interval([0.25]) == (0.25, 0.25) and np.isnan(confidence_interval([])).all()


@given(some.lists(some.floats(0, 1), max_size=8))
def test_an_interval_of_a_measure_stays_within_its_range(values):
    low, high = confidence_interval(values)
    assert not values or (0 <= low <= np.mean(values) + 1e-12 and np.mean(values) - 1e-12 <= high <= 1)


def test_an_interval_of_a_measure_is_that_of_the_logit():
    """By hand: 0.9, 1, 1, 1 have mean .975 and standard error .025; t of 3 degrees at 97.5 % is 3.182446, so Student's reaches 1.0546."""
    reach = 3.182446 * 0.025 / (0.975 * 0.025)
    expected = [1 / (1 + np.exp(-(np.log(0.975 / 0.025) + sign * reach))) for sign in (-1, 1)]
    assert confidence_interval([0.9, 1.0, 1.0, 1.0]) == pytest.approx(expected, rel=1e-6)
    for others in ([3.0, 5.0, 9.0], [0.2, 0.3, 1.5], [-0.5, 0.75, 0.75]):  # one value outside is no measure either
        assert confidence_interval(others) == pytest.approx(stats.t.interval(0.95, 2, loc=np.mean(others), scale=stats.sem(others)))
    samples = (np.random.default_rng(2).random((400, 30)) < 0.9).astype(float)
    assert 370 <= sum(low <= 0.9 <= high for low, high in (confidence_interval(sample) for sample in samples)) <= 400


@given(some.lists(some.floats(0, 1), max_size=6))
def test_corrections_are_those_of_the_loop(raw):
    holm, plain = (correct_p_values(raw, method) for method in ("holm", "bonferroni"))
    assert holm == pytest.approx(reporting.holm(raw), abs=1e-14)
    assert correct_p_values(raw, "none") == pytest.approx(raw, abs=1e-14)
    assert plain == pytest.approx([min(p * len(raw), 1.0) for p in raw], abs=1e-14)
    assert all(value <= other for value, other in zip(holm, plain, strict=True))
