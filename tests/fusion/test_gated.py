from functools import partial

import numpy as np
import pytest

from moeir.errors import DataError
from moeir.fusion import features, formulas, gated
from moeir.fusion.gated import FeatureScaler, FusionExamples, FusionWeights, GatedFusion
from moeir.records.runs import Run
from tests.oracles import learned_fusion as oracle


def zero_weights(experts, query_features, document_features):
    return FusionWeights(np.zeros(experts), np.zeros((experts, query_features)), np.zeros(document_features))


def random_examples(seed=0, queries=5, experts=3, evidence=4, situation=2):
    generator = np.random.default_rng(seed)
    sizes = generator.integers(1, 7, queries)
    targets = np.concatenate([part / part.sum() for part in (generator.random(size) for size in sizes)])
    return FusionExamples(
        generator.normal(size=(experts, len(targets))),
        generator.normal(size=(evidence, len(targets))),
        generator.normal(size=(queries, situation)),
        np.cumsum(sizes) - sizes,
        targets,
    )


def test_the_gradient_is_what_finite_differences_say():
    examples = random_examples()
    start = zero_weights(3, 2, 4)
    vector = np.random.default_rng(1).normal(size=len(start.to_vector()))
    gradient = gated.listwise_loss(start.from_vector(vector), examples)[1].to_vector()
    for index in range(len(vector)):
        step = np.zeros(len(vector))
        step[index] = 1e-6
        above, below = (gated.listwise_loss(start.from_vector(vector + sign * step), examples)[0] for sign in (1, -1))
        assert gradient[index] == pytest.approx((above - below) / 2e-6, abs=1e-7)


def test_the_loss_is_that_of_loops():
    examples = random_examples(3)
    weights = zero_weights(3, 2, 4).from_vector(np.random.default_rng(4).normal(size=13))
    expected = []
    for query, (start, size) in enumerate(zip(examples.starts, examples.sizes, strict=True)):
        exponentials = np.exp(weights.gate_weights @ examples.query_features[query])
        gates = 3 * exponentials / exponentials.sum()
        scores = [
            sum(gates[one] * weights.expert_weights[one] * examples.scores[one, row] for one in range(3))
            + weights.document_weights @ examples.document_features[:, row]
            for row in range(start, start + size)
        ]
        expected.append(oracle.loss(scores, examples.targets[start : start + size].tolist()))
    assert gated.listwise_loss(weights, examples)[0] == pytest.approx(np.mean(expected))


def test_a_loss_by_hand():
    """Two documents, scores 1 and 0, the first relevant: log(1 + 1/e)."""
    examples = FusionExamples(np.array([[1.0, 0.0]]), np.zeros((1, 2)), np.zeros((1, 1)), np.array([0]), np.array([1.0, 0.0]))
    value, gradient = gated.listwise_loss(FusionWeights(np.ones(1), np.zeros((1, 1)), np.zeros(1)), examples)
    assert value == pytest.approx(np.log(1 + np.exp(-1)))
    assert gradient.expert_weights[0] == pytest.approx(-1 / (1 + np.e))


LEXICAL = (np.array([4, 7]), np.array([9.0, 5.0]))
DENSE = (np.array([7, 2]), np.array([0.5, 0.25]))


def hand_made_fusion(gate=0.0, held_by_all=0.0):
    """Weights 1 and 2 for lists of range 1; the gate depends on the first list's best score, 9, of mean 8 and deviation 1."""
    evidence, situation = features.count_features(2, words=False)
    scales = FeatureScaler(np.ones(2), np.ones(evidence), np.eye(situation)[0] * 8, np.ones(situation))
    weights = zero_weights(2, situation, evidence)
    weights.expert_weights[:], weights.gate_weights[0, 0], weights.document_weights[-1] = (1, 2), gate, held_by_all
    return GatedFusion(scales, weights)


def test_without_gate_and_evidence_it_is_the_weighted_sum():
    documents, scores = hand_made_fusion().formula()([LEXICAL, DENSE])
    expected = partial(formulas.linear, weights="1+2")([LEXICAL, DENSE])
    assert (documents.tolist(), scores.tolist()) == (expected[0].tolist(), expected[1].tolist())


def test_a_gate_and_evidence_by_hand():
    """z = 1, W z = (log 3, 0): gates 2 · (3/4, 1/4); document 7 stands in both lists and gets 4 more, 2 from each."""
    merge = hand_made_fusion(gate=np.log(3), held_by_all=4.0).formula()
    documents, parts = merge([LEXICAL, DENSE], apart=True)
    assert documents.tolist() == [2, 4, 7]
    assert parts == pytest.approx(np.array([[7.5, 13.5, 9.5], [0.25, 0.25, 2.5]]))
    assert merge([LEXICAL, DENSE])[1] == pytest.approx([7.75, 13.75, 12.0])


def test_evidence_of_one_list_adds_to_its_part_alone():
    """Weight 1 of `held` in the first list, which has 4 and 7; weight 8 of 1 / rank in the second, which has 7 and then 2."""
    merge, plain = hand_made_fusion(), hand_made_fusion()
    merge.weights.document_weights[[3, 6]] = (1, 8)
    parts, plain_parts = (fusion.formula()([LEXICAL, DENSE], apart=True)[1] for fusion in (merge, plain))
    assert (parts - plain_parts).tolist() == [[0, 1, 1], [4, 0, 8]]


def learn(kind="gated", **changed):
    runs, qrels = random_runs()
    return gated.learn_fusion(runs, qrels, kind, **{"depth": 20, "strength": 0.1, "seed": 1, "texts": None} | changed)


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


def test_a_gate_learns_which_list_is_right_where_one_weight_cannot():
    runs, qrels = random_runs()
    fit = learn()
    fused = formulas.fuse_runs(runs, fit.gated.formula())
    top_is_relevant = [fused.hits(query)[0][0] == "d0" for query in qrels]
    weights = "+".join(map(str, learn("linear", strength=None).weights))
    plain = formulas.fuse_runs(runs, partial(formulas.linear, weights=weights))
    assert np.mean(top_is_relevant) > 0.95 > np.mean([plain.hits(query)[0][0] == "d0" for query in qrels])


def test_learning_is_the_same_each_time_and_survives_plain_numbers():
    first, second = learn(strength=None), learn(strength=None)
    assert gated.gated_to_dict(first.gated) == gated.gated_to_dict(second.gated)
    assert first.details == second.details
    assert set(first.details["held-out loss"]) == {"linear", *(f"strength {one:g}" for one in gated.L2_STRENGTHS)}
    again = gated.gated_from_dict(gated.gated_to_dict(first.gated), 2)
    assert again.weights.to_vector().tolist() == first.gated.weights.to_vector().tolist()
    with pytest.raises(ValueError, match="finite numbers"):
        gated.gated_from_dict(gated.gated_to_dict(first.gated), 3)


def test_the_weighted_sum_is_at_the_least_loss():
    _, examples = gated.build_examples(*random_runs(), 20, None, None)
    weights = gated.fit_weights(examples, None)
    least = gated.listwise_loss(weights, examples)[0]
    for step in np.array([[1, 0], [-1, 0], [0, 1], [0, -1]]) * 0.05:
        assert (
            gated.listwise_loss(FusionWeights(weights.expert_weights + step, weights.gate_weights, weights.document_weights), examples)[0]
            > least
        )
    assert not weights.gate_weights.any() and not weights.document_weights.any()


def test_targets_are_grades_over_their_sum_and_what_is_not_found_does_not_teach():
    runs = [Run.from_hits({"q": {"a": 3, "b": 2, "c": 1}, "r": {"a": 1}}), Run.from_hits({"q": {"b": 2, "d": 1}})]
    qrels = {"q": {"a": 1, "d": 3, "z": 2, "b": 0, "c": -1}, "r": {"b": 1}, "s": {"a": 1}}
    _, examples = gated.build_examples(runs, qrels, 2, None, None)
    assert examples.targets.tolist() == [0.25, 0.0, 0.75]  # a, b and d; c is at rank 3 only
    with pytest.raises(DataError, match="no query has a relevant document among the first 2"):
        gated.build_examples(runs, {"r": {"b": 1}}, 2, None, None)
