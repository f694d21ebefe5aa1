"""Weights of a sum: the loss and its gradient against loops and finite differences, the examples by hand, the least loss."""

import numpy as np
import pytest

from moeir.errors import DataError
from moeir.fusion import linear_weights
from moeir.fusion.linear_weights import FusionExamples
from moeir.records.runs import Run
from tests.oracles import learned_fusion as oracle


def random_examples(seed=0, queries=5, experts=3):
    generator = np.random.default_rng(seed)
    sizes = generator.integers(1, 7, queries)
    targets = np.concatenate([part / part.sum() for part in (generator.random(size) for size in sizes)])
    return FusionExamples(generator.normal(size=(experts, len(targets))), np.ones(experts), np.cumsum(sizes) - sizes, targets)


def test_the_gradient_is_what_finite_differences_say():
    examples, weights = random_examples(), np.random.default_rng(1).normal(size=3)
    gradient = linear_weights.listwise_loss(weights, examples)[1]
    for index in range(3):
        step = np.eye(3)[index] * 1e-6
        above, below = (linear_weights.listwise_loss(weights + sign * step, examples)[0] for sign in (1, -1))
        assert gradient[index] == pytest.approx((above - below) / 2e-6, abs=1e-7)


def test_the_loss_is_that_of_loops():
    examples, weights = random_examples(3), np.random.default_rng(4).normal(size=3)
    expected = []
    for start, size in zip(examples.starts, examples.sizes, strict=True):
        scores = [sum(weights[one] * examples.scores[one, row] for one in range(3)) for row in range(start, start + size)]
        expected.append(oracle.loss(scores, examples.targets[start : start + size].tolist()))
    assert linear_weights.listwise_loss(weights, examples)[0] == pytest.approx(np.mean(expected))


def test_a_loss_by_hand():
    """Two documents, scores 1 and 0, the first relevant: log(1 + 1/e)."""
    examples = FusionExamples(np.array([[1.0, 0.0]]), np.ones(1), np.array([0]), np.array([1.0, 0.0]))
    value, gradient = linear_weights.listwise_loss(np.ones(1), examples)
    assert value == pytest.approx(np.log(1 + np.exp(-1)))
    assert gradient[0] == pytest.approx(-1 / (1 + np.e))


def random_runs(queries=60):
    """Two lists; the first is right where its best score is high, the second elsewhere."""
    generator = np.random.default_rng(5)
    first, second, qrels = {}, {}, {}
    for query in range(queries):
        is_even = query % 2 == 0
        for lists, is_right in ((first, is_even), (second, not is_even)):
            scores = generator.random(12)
            scores[0] = 1.5 if is_right else 0.1
            lists[f"q{query}"] = {f"d{rank}": float(score) + 5 * (is_even and lists is first) for rank, score in enumerate(scores)}
        qrels[f"q{query}"] = {"d0": 1, "d1": 0}
    return [Run.from_hits(first), Run.from_hits(second)], qrels


def test_the_weighted_sum_is_at_the_least_loss():
    examples = linear_weights.build_examples(*random_runs(), 20)
    weights = linear_weights.fit_weights(examples)
    least = linear_weights.listwise_loss(weights, examples)[0]
    for step in np.array([[1, 0], [-1, 0], [0, 1], [0, -1]]) * 0.05:
        assert linear_weights.listwise_loss(weights + step, examples)[0] > least


def test_folds_hold_each_query_once():
    examples = linear_weights.build_examples(*random_runs(), 20)
    folds = list(linear_weights.split_folds(examples, seed=1))
    assert sorted(query for _, own in folds for query in own.queries) == sorted(examples.queries) and len(folds) == 5
    assert all(not set(rest.queries) & set(own.queries) and len(rest) + len(own) == len(examples) for rest, own in folds)


def test_targets_are_grades_over_their_sum_and_what_is_not_found_does_not_teach():
    runs = [Run.from_hits({"q": {"a": 3, "b": 2, "c": 1}, "r": {"a": 1}}), Run.from_hits({"q": {"b": 2, "d": 1}})]
    qrels = {"q": {"a": 1, "d": 3, "z": 2, "b": 0, "c": -1}, "r": {"b": 1}, "s": {"a": 1}}
    examples = linear_weights.build_examples(runs, qrels, 2)
    assert examples.targets.tolist() == [0.25, 0.0, 0.75]  # a, b and d; c is at rank 3 only
    with pytest.raises(DataError, match="no query has a relevant document among the first 2"):
        linear_weights.build_examples(runs, {"r": {"b": 1}}, 2)
