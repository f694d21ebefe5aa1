"""Router regularizers: entropy and load balance against loops, the routers and sides that they apply to, and their metrics."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moeir.architectures.base import EncoderOutput
from moeir.backbones.dispatch import RouterOutput
from moeir.errors import UsageError
from moeir.representations.dense import Dense
from moeir.representations.sparse import Sparse
from moeir.training import objectives, regularizers
from moeir.training.regularizers import RegularizerWeights
from tests.oracles import training as oracles

quick = settings(deadline=None, max_examples=30)
chances = st.lists(st.lists(st.integers(0, 8), min_size=3, max_size=3).filter(any), min_size=1, max_size=5)


def routing(rows):
    return RouterOutput.from_text_probabilities(torch.tensor(rows, dtype=torch.float32).requires_grad_())


def mean_row(rows):
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


@quick
@given(chances)
def test_entropy_and_load_balance_are_those_of_the_loop(counts):
    rows = [[count / sum(row) for count in row] for row in counts]
    assert regularizers.negative_entropy(routing(rows)).item() == pytest.approx(oracles.negative_entropy(rows), abs=1e-6)
    together = oracles.negative_entropy([mean_row(rows)])
    assert regularizers.negative_entropy(routing(rows), scope="batch").item() == pytest.approx(together, abs=1e-6)
    assert regularizers.load_balance(routing(rows)).item() == pytest.approx(oracles.load_balance(rows), abs=1e-5)


def test_a_certain_router_has_finite_gradients():
    router = routing([[1.0, 0.0], [0.0, 1.0]])
    entropies = regularizers.negative_entropy(router) + regularizers.negative_entropy(router, scope="batch")
    (entropies + regularizers.load_balance(router)).backward()
    assert router.probabilities.grad.isfinite().all()


def test_what_an_expert_wins_is_a_constant_for_load_balance():
    router = routing([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]])
    regularizers.load_balance(router).backward()
    assert torch.allclose(router.probabilities.grad, torch.tensor([[2 * 2 / 9, 2 * 1 / 9]]).expand(3, 2))


QUERIES = {"layer2": [[0.9, 0.1], [0.6, 0.4]], "layer4": [[0.5, 0.5], [0.2, 0.8]], "gate": [[0.7, 0.3], [0.8, 0.2]]}
DOCUMENTS = {name: [row[::-1] for row in rows] + [[0.3, 0.7], [1.0, 0.0]] for name, rows in QUERIES.items()}


def batch(queries=QUERIES, documents=DOCUMENTS):
    sides = [
        EncoderOutput({"global": Dense(torch.zeros(count, 3))}, {name: routing(rows) for name, rows in rows_by_router.items()})
        for count, rows_by_router in ((2, queries), (4, documents))
    ]
    return objectives.EncodedBatch(*sides, torch.zeros(2, 4, dtype=torch.bool), 9, 10)


def penalty_cost(objective, **options):
    """The regularizers' part of a batch's loss."""
    free = objective(batch(), regularizers=RegularizerWeights(entropy=0.0, load_balance=0.0))
    return objective(batch(), regularizers=RegularizerWeights(**options)).loss.item() - free.loss.item()


LAYERS = ("layer2", "layer4")


@pytest.mark.parametrize("objective", [objectives.contrastive, objectives.competitive])
def test_entropy_is_asked_of_layers_on_both_sides_and_not_of_the_gate(objective):
    expected = sum(oracles.negative_entropy(side[name]) for name in LAYERS for side in (QUERIES, DOCUMENTS)) / 4
    assert penalty_cost(objective) == pytest.approx(0.01 * expected, abs=1e-6)
    assert penalty_cost(objective, entropy=0.5) == pytest.approx(0.5 * expected, rel=1e-4)
    assert penalty_cost(objective, entropy=0.5, entropy_sign="as-printed") == pytest.approx(-0.5 * expected, rel=1e-4)


@pytest.mark.parametrize("objective", [objectives.contrastive, objectives.competitive])
@pytest.mark.parametrize("by_side", [False, True])
def test_balance_is_of_both_sides_together_or_of_each(objective, by_side):
    means = {name: [mean_row(side[name]) for side in (QUERIES, DOCUMENTS)] for name in LAYERS}
    rows = [[row] for name in LAYERS for row in (means[name] if by_side else [mean_row(means[name])])]
    expected = sum(map(oracles.negative_entropy, rows)) / len(rows)
    assert penalty_cost(objective, entropy=0.5, entropy_of="batch", by_side=by_side) == pytest.approx(0.5 * expected, rel=1e-4)
    # together, 2 queries and 4 documents weigh the same
    sides = {name: [QUERIES[name], DOCUMENTS[name]] if by_side else [2 * QUERIES[name] + DOCUMENTS[name]] for name in QUERIES}
    costs = [oracles.load_balance(decisions) for name in sides for decisions in sides[name]]
    assert penalty_cost(objective, entropy=0.0, load_balance=2.0, by_side=by_side) == pytest.approx(2.0 * sum(costs) / len(costs), rel=1e-4)


PERFECT = {"layer2": [[0.99, 0.01]] * 2}, {"layer2": [[0.01, 0.99]] * 4}
BLIND = {"layer2": [[0.9, 0.1], [0.2, 0.8]]}, {"layer2": [[0.6, 0.4], [0.3, 0.7]] * 2}


@pytest.mark.parametrize(
    ("sides", "bits"),
    [
        (PERFECT, 1.0),  # the expert says which side it is
        (BLIND, 0.0),  # each side uses each expert for half of its texts
    ],
)
def test_role_information_is_the_mutual_information_of_expert_and_side(sides, bits):
    assert float(objectives.contrastive(batch(*sides)).metrics["role_information.layer2"]) == pytest.approx(bits, abs=1e-5)


def test_experts_of_an_encoder_share_what_their_top_k_choose_and_pay_for_balance_alone():
    rows = [[0.5, 0.3, 0.2], [0.1, 0.6, 0.3]]
    router = RouterOutput(torch.tensor(rows), torch.tensor([0, 1, 2]), top_k=2)
    assert regularizers.expert_usage(router).tolist() == [0.25, 0.5, 0.25]  # experts 0 and 1, then 1 and 2
    assert regularizers.load_balance(router).item() == pytest.approx(3 * (0.25 * 0.3 + 0.5 * 0.45 + 0.25 * 0.25))
    moved = RouterOutput.concatenate([router.select(torch.tensor([1, 0])).map(torch.clone), router])
    assert regularizers.expert_usage(moved).tolist() == [0.25, 0.5, 0.25]
    output = EncoderOutput({"global": Dense(torch.zeros(2, 3))}, {"layer2": router})
    costs = [RegularizerWeights(entropy=1.0, load_balance=weight).router_penalty(output, output)[0] for weight in (0.0, 2.0)]
    assert costs == [0.0, pytest.approx(2 * 1.0875)]


def test_the_metrics_show_how_open_a_router_is_and_which_expert_starves():
    facts = objectives.contrastive(batch()).metrics
    for name in QUERIES:
        both = (oracles.negative_entropy(QUERIES[name]) + oracles.negative_entropy(DOCUMENTS[name])) / 2
        assert facts[f"entropy.{name}"] == pytest.approx(-both, abs=1e-6)
        rows = QUERIES[name] + DOCUMENTS[name]
        wins = sum(row[0] >= row[1] for row in rows) / 6
        assert (facts[f"usage.{name}.0"], facts[f"usage.{name}.1"]) == (pytest.approx(wins), pytest.approx(1 - wins))


def test_without_routers_there_is_neither_cost_nor_fact():
    training_batch = batch({}, {})
    output = objectives.contrastive(training_batch, regularizers=RegularizerWeights(entropy=9.0, load_balance=9.0))
    assert output.metrics.keys() == {"loss", "loss.global", "uniform_loss"}
    assert output.loss == output.metrics["loss.global"]


def test_another_scope_of_the_entropy_is_refused():
    with pytest.raises(UsageError, match="entropy_of=text: expected instance or batch"):
        RegularizerWeights(entropy_of="text")


ALONE, SUMMED = {"one": ("lexical",), "other": ("global",)}, {"both": ("lexical", "global")}
FLOPS = 1.0, 5.0  # mean weights (1, 0) of queries and (1, 2) of documents


@pytest.mark.parametrize(
    ("groups", "weight"), [({}, 0.01), (ALONE, 0.01), ({"sum": ("global", "local"), "x": ("lexical",)}, 0.01), (SUMMED, 0.0)]
)
def test_flops_weigh_a_hundredth_unless_the_expert_is_summed_with_another(groups, weight):
    sides = [
        EncoderOutput({"lexical": Sparse.from_matrix(weights), "global": Dense(torch.zeros(2, 3))}, {}, groups)
        for weights in (torch.tensor([[2.0, 0.0], [0.0, 0.0]]), torch.tensor([[0.0, 4.0], [2.0, 0.0]]))
    ]
    assert float(RegularizerWeights().flops_penalty(*sides, 0)[0]) == pytest.approx(weight * sum(FLOPS))
