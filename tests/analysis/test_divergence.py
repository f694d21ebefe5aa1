import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeir.analysis.divergence import cosine_distances, estimate_divergences, kernel_weights
from tests.oracles import divergence as by_loops

values = st.floats(-3, 3).filter(lambda value: abs(value) > 0.01)
pairs = st.integers(2, 6).flatmap(lambda n: st.lists(st.tuples(*[st.tuples(values, values, values)] * 2), min_size=n, max_size=n))


@given(pairs, st.sampled_from([0.2, 1.0, 3.0]))
def test_divergences_are_those_of_the_text(pairs, bandwidth):
    queries, documents = (np.array(side) for side in zip(*pairs, strict=True))
    expected = by_loops.divergences(queries.tolist(), documents.tolist(), bandwidth)
    assert estimate_divergences(queries, documents, bandwidth=bandwidth) == pytest.approx(expected, rel=1e-6, abs=1e-12)


def test_a_worked_example():
    """Queries both along x; documents along x and y: rows (0, 1), (0, 1), columns (0, 0), (1, 1)."""
    queries, documents = np.array([[1.0, 0.0], [2.0, 0.0]]), np.array([[3.0, 0.0], [0.0, 1.0]])
    assert cosine_distances(queries, documents).tolist() == [[0.0, 1.0], [0.0, 1.0]]
    assert kernel_weights(cosine_distances(queries, documents), 1.0).tolist() == pytest.approx([0.5, 0.5])
    assert kernel_weights(cosine_distances(queries, documents).T, 1.0).tolist() == pytest.approx([0.5, 0.5])
    assert estimate_divergences(queries, documents) == pytest.approx((0.0, 0.0), abs=1e-15)


def test_sides_that_lie_apart_diverge_more_with_kl_four_times_js():
    """The magnitude and the order of CoT-MoTE's table 1 and A.1: near-uniform distributions, KL / JS = 4."""
    generator = np.random.default_rng(0)
    meaning, common = generator.normal(size=(400, 768)), generator.normal(size=768) * 1.5
    sides = [meaning + 0.7 * generator.normal(size=(400, 768)) + common for _ in range(2)]
    near = estimate_divergences(*sides)
    far = estimate_divergences(*(side + generator.normal(size=768) for side in sides))
    assert 1e-5 < near[0] < far[0] < 1e-2
    assert [kl / js for kl, js in (near, far)] == pytest.approx([4.0, 4.0], rel=0.01)


def test_far_points_do_not_underflow():
    points = np.array([[0.0], [1e6], [2e6]])
    assert kernel_weights(points, 1.0).tolist() == pytest.approx([1 / 3] * 3)
