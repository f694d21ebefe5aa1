"""Weights of a sum: the loss and its gradient against loops and finite differences, examples by hand, and what is fitted."""

from functools import partial

import numpy as np
import pytest

from moeir.errors import DataError
from moeir.evaluation import measures
from moeir.fusion import formulas, linear_weights
from moeir.fusion.linear_weights import FusionExamples
from moeir.records.runs import Run
from tests.oracles import linear_weights as oracle

MEASURE = measures.parse_measure("nDCG@10")


def random_examples():
    """Of five queries and three experts."""
    generator = np.random.default_rng(0)
    sizes = generator.integers(1, 7, 5)
    targets = np.concatenate([part / part.sum() for part in (generator.random(size) for size in sizes)])
    return FusionExamples(generator.normal(size=(3, len(targets))), np.ones(3), np.cumsum(sizes) - sizes, targets)


def test_the_loss_is_that_of_loops_and_its_gradient_what_finite_differences_say():
    examples, weights = random_examples(), np.random.default_rng(1).normal(size=3)
    expected, (loss, gradient) = [], linear_weights.listwise_loss(weights, examples)
    for index in range(3):
        step = np.eye(3)[index] * 1e-6
        above, below = (linear_weights.listwise_loss(weights + sign * step, examples)[0] for sign in (1, -1))
        assert gradient[index] == pytest.approx((above - below) / 2e-6, abs=1e-7)
    for start, size in zip(examples.starts, examples.sizes, strict=True):
        scores = [sum(weights[one] * examples.scores[one, row] for one in range(3)) for row in range(start, start + size)]
        expected.append(oracle.loss(scores, examples.targets[start : start + size].tolist()))
    assert loss == pytest.approx(np.mean(expected))


def test_targets_are_grades_over_their_sum_and_what_is_not_found_does_not_teach():
    runs = [Run.from_hits({"q": {"a": 3, "b": 2, "c": 1}, "r": {"a": 1}}), Run.from_hits({"q": {"b": 2, "d": 1}})]
    qrels = {"q": {"a": 1, "d": 3, "z": 2, "b": 0, "c": -1}, "r": {"b": 1}, "s": {"a": 1}}
    examples = linear_weights.build_examples(runs, qrels, 2)
    assert examples.targets.tolist() == [0.25, 0.0, 0.75]  # a, b and d; c is at rank 3 only
    with pytest.raises(DataError, match="no query has a relevant document among the first 2"):
        linear_weights.build_examples(runs, {"r": {"b": 1}}, 2)


def loud_and_weak(queries: range, loudness: float = 1.7) -> tuple[list[Run], dict[str, dict[str, int]]]:
    """Two experts' lists of 20 documents: the relevant one is a deviation above the others for the first, half of one for the second,
    whose scores are `loudness` times too large."""
    generator = np.random.default_rng(queries.start)
    runs: list[dict[str, dict[str, float]]] = [{}, {}]
    for query in queries:
        for run, signal, scale in zip(runs, (1.0, 0.5), (1.0, loudness), strict=True):
            scores = scale * (5 + generator.normal(size=20) + signal * (np.arange(20) == 0))
            run[f"q{query}"] = {f"d{document}": float(score) for document, score in enumerate(scores)}
    return [Run.from_hits(run) for run in runs], {f"q{query}": {"d0": 1} for query in queries}


def fit(runs: list[Run], qrels: dict[str, dict[str, int]]) -> list[float]:
    return linear_weights.fit_weights(linear_weights.build_examples(runs, qrels, linear_weights.FIT_DEPTH))


def mean_of_sum(runs: list[Run], qrels: dict[str, dict[str, int]], scales: list[float]) -> float:
    fused = formulas.fuse_runs(runs, partial(formulas.linear, weights="+".join(map(str, scales))))
    return float(np.mean(list(measures.evaluate_run(fused, qrels, [MEASURE])[str(MEASURE)].values())))


def test_scales_quieten_an_expert_that_is_too_loud() -> None:
    runs, qrels = loud_and_weak(range(400))
    scales = fit(runs, qrels)
    # the best weight of a score of unit noise is its signal: 1 : 0.5 / 1.7, and a geometric mean of 1
    assert scales[1] / scales[0] == pytest.approx(0.5 / 1.7, rel=0.3)
    assert np.prod(scales) == pytest.approx(1, rel=1e-3)
    other_runs, other_qrels = loud_and_weak(range(1000, 1400))
    assert mean_of_sum(other_runs, other_qrels, scales) > mean_of_sum(other_runs, other_qrels, [1, 1]) + 0.02


def test_each_list_has_its_own_factor_and_an_expert_that_only_harms_a_hundredth_of_the_others() -> None:
    runs, qrels = loud_and_weak(range(60))
    first, second = fit(runs, qrels)
    louder = fit(loud_and_weak(range(60), loudness=4 * 1.7)[0], qrels)
    assert louder == pytest.approx([2 * first, second / 2], rel=1e-2)
    upside_down = {query: {document: -score for document, score in runs[0].hits(query)} for query in runs[0].queries}
    assert fit([runs[0], Run.from_hits(upside_down)], qrels) == [10.0, 0.1]  # both lists spread as far; their geometric mean is 1


def test_folds_hold_out_every_query_with_a_relevant_document_once() -> None:
    runs, qrels = loud_and_weak(range(23))
    qrels["q7"] = {"nothing found": 1}  # no list has a relevant document: not fitted on
    examples = linear_weights.build_examples(runs, qrels, linear_weights.FIT_DEPTH)
    folds = list(linear_weights.split_folds(examples))
    assert sorted(query for _, own in folds for query in own.queries) == sorted(set(qrels) - {"q7"})
    assert all(not set(rest.queries) & set(own.queries) and len(rest) + len(own) == len(examples) for rest, own in folds)
    assert len({tuple(linear_weights.fit_weights(rest)) for rest, _ in folds}) == len(folds) == 5
    assert list(linear_weights.split_folds(linear_weights.build_examples(runs, {"q1": qrels["q1"]}, 20))) == []
