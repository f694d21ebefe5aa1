"""Distillation from a teacher, and losses of sums of experts, against loops."""

from functools import partial

import pytest
import torch

from moeir.architectures.base import EncoderOutput
from moeir.errors import UsageError
from moeir.representations.dense import Dense
from moeir.representations.sparse import Sparse
from moeir.training import objectives
from moeir.training.regularizers import RegularizerWeights
from tests.oracles import training as oracles

FLOPS = RegularizerWeights(flops_query=0.3, flops_document=0.7)
Q, GROUP = 3, 4


TEACHER = torch.tensor([[9.0, 4.0, 2.0, 1.0], [5.0, 6.0, 0.0, 1.0], [3.0, 1.0, 2.5, 0.0]])


def batch(*, sums=None, teacher=TEACHER, group=GROUP):
    generator = torch.Generator().manual_seed(3)
    sides = []
    for count in (Q, Q * group):
        vectors, weights = torch.randn(count, 5, generator=generator), torch.rand(count, 7, generator=generator)
        sides.append(EncoderOutput({"global": Dense(vectors), "lexical": Sparse.from_matrix(weights)}, summed_experts=sums or {}))
    return objectives.EncodedBatch(*sides, torch.zeros(Q, Q * group, dtype=torch.bool), 0, 10, teacher)


NO_FLOPS = {"regularizers": RegularizerWeights(flops_query=0.0, flops_document=0.0)}
HYBRID = {"hybrid": ("global", "lexical")}


def scores(given):
    return {name: part.scores(given.documents[name]) for name, part in given.queries.representations.items()}


def own_scores(matrix):
    """Each query's scores of its own documents."""
    return [row[query * GROUP : (query + 1) * GROUP] for query, row in enumerate(matrix.tolist())]


def mean(costs):
    return sum(costs) / Q


@pytest.mark.parametrize(
    "objective, options, oracle",
    [
        *((objectives.kl, {"temperature": one}, partial(oracles.kl_divergence, temperature=one)) for one in (0.5, 1.0, 3.0)),
        (objectives.margin_mse, {}, oracles.margin_mse),
    ],
)
def test_distillation_is_the_sum_over_experts_of_the_loop(objective, options, oracle):
    toy_batch, expected = batch(), {}
    for name, matrix in scores(toy_batch).items():
        expected[name] = mean([oracle(*pair) for pair in zip(own_scores(matrix), TEACHER.tolist(), strict=True)])
    output = objective(toy_batch, **options, **NO_FLOPS)
    assert output.loss.item() == pytest.approx(sum(expected.values()), rel=1e-4)
    assert {name: output.metrics[f"loss.{name}"] for name in expected} == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("objective", objectives.NEEDS_TEACHER)
def test_the_plain_loss_can_be_added_and_penalties_are_those_of_the_others(objective):
    toy_batch = batch()
    plain = objectives.contrastive(toy_batch, **NO_FLOPS)
    alone, both = objective(toy_batch, **NO_FLOPS), objective(toy_batch, contrastive=0.5, **NO_FLOPS)
    assert both.loss.item() - alone.loss.item() == pytest.approx(0.5 * plain.loss.item(), rel=1e-4)
    assert (
        both.metrics["contrastive.global"] == plain.metrics["loss.global"] and both.metrics["loss.global"] == alone.metrics["loss.global"]
    )
    cost = objectives.contrastive(toy_batch, regularizers=FLOPS).loss.item() - plain.loss.item()
    assert objective(toy_batch, regularizers=FLOPS).loss.item() - alone.loss.item() == pytest.approx(cost, rel=1e-3)


@pytest.mark.parametrize("objective", objectives.NEEDS_TEACHER)
def test_a_teacher_and_negatives_are_needed(objective):
    with pytest.raises(UsageError, match="distillation needs teacher scores in the examples"):
        objective(batch(teacher=None))
    with pytest.raises(UsageError, match="distillation needs negatives to compare with"):
        objective(batch(teacher=torch.ones(Q, 1), group=1))


@pytest.mark.parametrize("objective", [objectives.contrastive, objectives.competitive])
def test_losses_are_taken_of_sums_of_experts(objective):
    toy_batch = batch(sums=HYBRID)
    summed_scores = sum(scores(toy_batch).values()).tolist()
    expected = mean([oracles.info_nce(row, query * GROUP) for query, row in enumerate(summed_scores)])
    output = objective(toy_batch, **NO_FLOPS)
    assert output.loss.item() == pytest.approx(expected, rel=1e-4) and output.metrics["loss.hybrid"] == pytest.approx(expected, rel=1e-4)
    assert not {"loss.global", "loss.lexical", "share.global"} & output.metrics.keys()
    assert objective is objectives.contrastive or output.metrics["share.hybrid"] == 1.0
