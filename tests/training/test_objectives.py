"""Share times loss, plus regularizers: both objectives against a loop over queries and experts."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch

from moeir.architectures.base import EncoderOutput
from moeir.errors import UsageError
from moeir.representations.dense import Dense
from moeir.representations.multivector import MultiVector
from moeir.representations.sparse import Sparse
from moeir.training import objectives
from moeir.training.competition import LearningSpeed
from moeir.training.regularizers import RegularizerWeights
from tests.oracles import training as oracles

NO_FLOPS = RegularizerWeights(flops_query=0.0, flops_document=0.0)
Q, GROUP, V, D = 3, 4, 12, 5
EXPERTS = ("lexical", "local", "global")


def make_leaves(seed=0):
    """Leaf tensors of both sides' representations."""
    generator = torch.Generator().manual_seed(seed)
    sizes = {"lexical": V, "local": D, "global": D}
    shapes = {
        (side, name): (count * (2 if name == "local" else 1), sizes[name])
        for side, count in (("query", Q), ("document", Q * GROUP))
        for name in EXPERTS
    }
    return {key: torch.randn(*shape, generator=generator).requires_grad_() for key, shape in shapes.items()}


def encode(numbers, side, count):
    starts = torch.arange(count + 1) * 2
    return EncoderOutput(
        {
            "lexical": Sparse.from_matrix(torch.relu(numbers[side, "lexical"])),
            "local": MultiVector(numbers[side, "local"], starts),
            "global": Dense(numbers[side, "global"]),
        }
    )


def batch(numbers, *, step=0, steps=10, ignored=(), teacher=None):
    mask = torch.zeros(Q, Q * GROUP, dtype=torch.bool)
    for query, document in ignored:
        mask[query, document] = True
    return objectives.EncodedBatch(encode(numbers, "query", Q), encode(numbers, "document", Q * GROUP), mask, step, steps, teacher)


IGNORED = ((0, 4), (1, 2), (2, 11))


def by_loop(numbers, *, ignored=IGNORED, temperature=0.5, scope="own", ties="average"):
    """Each expert's loss, rank and share of each query."""
    toy_batch = batch(numbers, ignored=ignored)
    values = {"loss": {}, "rank": {}}
    for name in EXPERTS:
        scores = toy_batch.queries[name].scores(toy_batch.documents[name]).tolist()
        for query, row in enumerate(scores):
            ignored_columns = {document for owner, document in ignored if owner == query}
            others = ignored_columns | ({column for column in range(Q * GROUP) if column // GROUP != query} if scope == "own" else set())
            values["loss"][name, query] = oracles.info_nce(row, query * GROUP, ignored_columns)
            values["rank"][name, query] = oracles.positive_rank(row, query * GROUP, others, ties)
    values["share"] = {}
    for query in range(Q):
        shares = oracles.expert_shares([values["rank"][name, query] for name in EXPERTS], temperature)
        values["share"] |= {(name, query): share for name, share in zip(EXPERTS, shares, strict=True)}
    return values


def flops_penalties(numbers, strength=0.01):
    sides = (batch(numbers).queries["lexical"], batch(numbers).documents["lexical"])
    return strength * sum(side.to_matrix().mean(0).square().sum().item() for side in sides)


def test_contrastive_is_the_plain_sum_of_the_experts_losses_and_the_penalty():
    numbers = make_leaves()
    output, expected = objectives.contrastive(batch(numbers, ignored=IGNORED)), by_loop(numbers)
    assert output.loss.item() == pytest.approx(sum(expected["loss"].values()) / Q + flops_penalties(numbers), rel=1e-5)
    for name in EXPERTS:
        assert output.metrics[f"loss.{name}"] == pytest.approx(sum(expected["loss"][name, query] for query in range(Q)) / Q, rel=1e-5)


@pytest.mark.parametrize("scope", ["own", "batch"])
@pytest.mark.parametrize("ties", ["average", "optimistic", "pessimistic"])
@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_competitive_weighs_each_querys_losses_by_the_shares(scope, ties, temperature):
    numbers = make_leaves(1)
    output = objectives.competitive(batch(numbers, ignored=IGNORED), standardised=0.0, temperature=temperature, rank_scope=scope, ties=ties)
    expected = by_loop(numbers, temperature=temperature, scope=scope, ties=ties)
    weighed = sum(expected["share"][key] * expected["loss"][key] for key in expected["loss"]) / Q
    assert output.loss.item() == pytest.approx(weighed + flops_penalties(numbers), rel=1e-5)
    entropy = -sum(share * math.log(share) for share in expected["share"].values()) / Q
    assert output.metrics["entropy.shares"] == pytest.approx(entropy, rel=1e-5)
    assert output.metrics["effective_experts"] == pytest.approx(math.exp(entropy), rel=1e-5)
    for name in EXPERTS:
        shares = [expected["share"][name, query] for query in range(Q)]
        mean = sum(shares) / Q
        assert output.metrics[f"share.{name}"] == pytest.approx(mean, rel=1e-5)
        assert output.metrics[f"spread.{name}"] == pytest.approx((sum((share - mean) ** 2 for share in shares) / Q) ** 0.5, abs=1e-6)
        assert output.metrics[f"rank.{name}"] == pytest.approx(sum(expected["rank"][name, query] for query in range(Q)) / Q)
        wins = [
            all(expected["share"][name, q] > expected["share"][other, q] + 1e-7 for other in EXPERTS if other != name) for q in range(Q)
        ]
        assert output.metrics[f"wins.{name}"] == pytest.approx(sum(wins) / Q)


@pytest.mark.parametrize("ratio, steps, first", [(0.0, 10, 0), (0.2, 10, 2), (0.25, 10, 2), (0.5, 9, 4), (1.0, 10, None), (1 / 3, 9, 3)])
def test_competition_starts_at_the_step_the_ratio_says(ratio, steps, first):
    numbers = make_leaves(2)
    outputs = [objectives.competitive(batch(numbers, step=step, steps=steps), standardised=ratio) for step in range(steps)]
    assert [bool(one.metrics["competing"]) for one in outputs] == [first is not None and step >= first for step in range(steps)]


def test_the_standardised_stage_is_the_plain_sum_or_the_mean():
    numbers = make_leaves(3)
    toy_batch = batch(numbers, ignored=IGNORED)
    before = objectives.competitive(toy_batch, standardised=0.5)
    assert before.loss.item() == pytest.approx(objectives.contrastive(toy_batch).loss.item(), rel=1e-6)
    mean = objectives.competitive(toy_batch, standardised=0.5, normalise_standardised=True)
    assert mean.loss.item() == pytest.approx(sum(by_loop(numbers)["loss"].values()) / Q / 3 + flops_penalties(numbers), rel=1e-5)


def scored_batch(rows_by_expert, *, ignored=()):
    """A batch whose experts have these scores [Q, N]: one-hot queries."""
    scores = {name: torch.tensor(rows, dtype=torch.float32) for name, rows in rows_by_expert.items()}
    queries, documents = next(iter(scores.values())).shape
    mask = torch.zeros(queries, documents, dtype=torch.bool)
    for query, document in ignored:
        mask[query, document] = True
    sides = (EncoderOutput({name: Dense(torch.eye(queries).requires_grad_()) for name in scores}),
             EncoderOutput({name: Dense(rows.T.contiguous()) for name, rows in scores.items()}))  # fmt: skip
    kinds, speed = torch.zeros(queries, dtype=torch.int64), LearningSpeed(1, len(scores))
    return objectives.EncodedBatch(*sides, mask, 0, 1, kinds=kinds, speed=speed)


def shares_of(toy_batch, **options):
    metrics = objectives.competitive(toy_batch, standardised=0.0, **options).metrics
    return [metrics[f"share.{name}"].item() for name in toy_batch.queries.representations]


def test_shares_by_loss_are_powers_of_the_positives_probabilities():
    scores = {"a": [[math.log(4), 0.0]], "b": [[0.0, 0.0]], "c": [[0.0, math.log(9)]]}  # probabilities .8, .5 and .1
    assert shares_of(scored_batch(scores), shares="loss", temperature=1) == pytest.approx([8 / 14, 5 / 14, 1 / 14], rel=1e-5)
    assert shares_of(scored_batch(scores), shares="loss", temperature=0.5) == pytest.approx([64 / 90, 25 / 90, 1 / 90], rel=1e-5)


def test_shares_by_loss_have_the_candidates_of_the_scope():
    """Positive `ln 3` against zeros: probability 3/4 among its own two documents, 3/6 among the batch's four."""
    scores = {"a": [[math.log(3), 0, 0, 0], [0, 0, math.log(3), 0]], "b": [[0.0] * 4] * 2}
    options = {"shares": "loss", "temperature": 1}
    assert shares_of(scored_batch(scores), **options) == pytest.approx([0.75 / 1.25, 0.5 / 1.25])
    assert shares_of(scored_batch(scores), rank_scope="batch", **options) == pytest.approx([0.5 / 0.75, 0.25 / 0.75])
    without = scored_batch(scores, ignored=((0, 2), (0, 3), (1, 0), (1, 1)))
    assert shares_of(without, rank_scope="batch", **options) == pytest.approx([0.75 / 1.25, 0.5 / 1.25])


@pytest.mark.parametrize("kind", objectives.SHARES)
def test_a_positive_without_negatives_gives_equal_shares(kind):
    assert shares_of(scored_batch({"a": [[9.0]], "b": [[-1.0]]}), shares=kind) == pytest.approx([0.5, 0.5])


def test_permuted_shares_weigh_other_queries_and_keep_their_means():
    """Two queries: each has the other's shares."""
    numbers = {"a": [[3.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 2.0]], "b": [[1.0, 3.0, 0.0, 0.0], [0.0, 0.0, 2.0, 1.0]]}
    own, permuted = (objectives.competitive(scored_batch(numbers), standardised=0.0, permuted=word) for word in (False, True))
    facts, others = ({name: float(value) for name, value in one.metrics.items() if name != "loss"} for one in (own, permuted))
    assert others == pytest.approx(facts)
    high = 1 / (1 + math.exp(-1.0))  # softmax of ranks 1 and 2 at 0.5: 2 and 1
    costs = {name: objectives.losses.info_nce(torch.tensor(rows), torch.tensor([0, 2]), torch.zeros(2, 4, dtype=torch.bool)).tolist()
             for name, rows in numbers.items()}  # fmt: skip
    expected = (high * (costs["b"][0] + costs["a"][1]) + (1 - high) * (costs["a"][0] + costs["b"][1])) / 2
    assert permuted.loss.item() == pytest.approx(expected, rel=1e-5) and permuted.loss > own.loss


def test_flops_has_a_strength_for_each_side_and_a_ramp():
    numbers = make_leaves(7)
    free = objectives.contrastive(batch(numbers, step=2), regularizers=NO_FLOPS).loss.item()
    query, document = (batch(numbers).queries["lexical"], batch(numbers).documents["lexical"])
    for options, expected in (
        ({"flops_query": 2.0, "flops_document": 0.0}, 2.0 * query.to_matrix().mean(0).square().sum().item()),
        ({"flops_query": 0.0, "flops_document": 3.0}, 3.0 * document.to_matrix().mean(0).square().sum().item()),
        ({"flops_query": 0.0, "flops_document": 3.0, "flops_ramp": 4}, 0.75 * document.to_matrix().mean(0).square().sum().item()),
    ):
        outcome = objectives.contrastive(batch(numbers, step=2), regularizers=RegularizerWeights(**options))
        assert outcome.loss.item() - free == pytest.approx(expected, rel=1e-4)
        assert outcome.metrics["flops.lexical.query"] == pytest.approx(query.to_matrix().mean(0).square().sum().item(), rel=1e-5)
        assert outcome.metrics["terms.lexical.document"] == (document.to_matrix() > 0).sum().item() / (Q * GROUP)


def test_one_expert_alone_has_the_whole_share():
    toy_batch = batch(make_leaves(9))
    sides = (EncoderOutput({"global": side["global"]}) for side in (toy_batch.queries, toy_batch.documents))
    alone = objectives.EncodedBatch(*sides, toy_batch.ignore_mask, 9, 10)
    output = objectives.competitive(alone)
    assert output.metrics["share.global"] == 1.0 and output.metrics["wins.global"] == 1.0
    assert output.loss.item() == pytest.approx(objectives.contrastive(alone).loss.item())


SELF_DISTILLATION = r"self-distillation:start=.*: expected whole numbers from 0, and finite weights"


@pytest.mark.parametrize(
    "objective, options, message",
    [
        (objectives.competitive, {"standardised": 1.5}, "standardised=1.5: expected a ratio of the steps, 0 to 1"),
        (objectives.competitive, {"rank_scope": "all"}, "rank_scope=all: expected own or batch"),
        (objectives.competitive, {"shares": "best"}, "shares=best: expected one of rank, loss"),
        (objectives.competitive, {"temperature": 0.0}, "temperature=0.0: expected more than 0"),
        (objectives.competitive, {"shares": "learnability"}, "the batch has no kinds of queries"),
        (objectives.lce, {"temperature": 0.0}, "lce:temperature=0: expected more than 0"),
        (objectives.bce, {"positive_weight": 0.0}, "bce:positive_weight=0: expected more than 0"),
        (objectives.kl, {"temperature": 0.0}, r"kl:temperature=0\.0: expected more than 0"),
        *((objectives.self_distillation, one, SELF_DISTILLATION) for one in ({"start": -1}, {"block": -2}, {"lexical_loss": math.nan})),
    ],
)
def test_impossible_options_are_refused(objective, options, message):
    with pytest.raises(UsageError, match=message):
        objective(batch(make_leaves()), **options)


TEACHER = torch.tensor([[9.0, 4.0, 2.0, 1.0], [5.0, 6.0, 0.0, 1.0], [3.0, 1.0, 2.5, 0.0]])


@pytest.mark.parametrize(
    "objective, options, oracle",
    [
        *((objectives.kl, {"temperature": one}, partial(oracles.kl_divergence, temperature=one)) for one in (0.5, 1.0, 3.0)),
        (objectives.margin_mse, {}, oracles.margin_mse),
    ],
)
def test_distillation_is_the_sum_over_experts_of_the_loop(objective, options, oracle):
    toy_batch, expected = batch(make_leaves(12), teacher=TEACHER), {}
    for name in EXPERTS:
        rows = toy_batch.queries[name].scores(toy_batch.documents[name]).tolist()
        own = [row[query * GROUP : (query + 1) * GROUP] for query, row in enumerate(rows)]
        expected[name] = sum(oracle(*pair) for pair in zip(own, TEACHER.tolist(), strict=True)) / Q
    output = objective(toy_batch, **options, regularizers=NO_FLOPS)
    assert output.loss.item() == pytest.approx(sum(expected.values()), rel=1e-4)
    assert {name: output.metrics[f"loss.{name}"].item() for name in expected} == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("objective", objectives.NEEDS_TEACHER)
def test_the_plain_loss_can_be_added_and_penalties_are_those_of_the_others(objective):
    toy_batch, weights = batch(make_leaves(12), teacher=TEACHER), RegularizerWeights(flops_query=0.3, flops_document=0.7)
    plain = objectives.contrastive(toy_batch, regularizers=NO_FLOPS)
    alone, both = (objective(toy_batch, contrastive=one, regularizers=NO_FLOPS) for one in (0.0, 0.5))
    assert both.loss.item() - alone.loss.item() == pytest.approx(0.5 * plain.loss.item(), rel=1e-4)
    assert (
        both.metrics["contrastive.global"] == plain.metrics["loss.global"] and both.metrics["loss.global"] == alone.metrics["loss.global"]
    )
    cost = objectives.contrastive(toy_batch, regularizers=weights).loss.item() - plain.loss.item()
    assert objective(toy_batch, regularizers=weights).loss.item() - alone.loss.item() == pytest.approx(cost, rel=1e-3)


@pytest.mark.parametrize("objective", objectives.NEEDS_TEACHER)
def test_a_teacher_and_negatives_are_needed(objective):
    with pytest.raises(UsageError, match="distillation needs teacher scores in the examples"):
        objective(batch(make_leaves()))
    with pytest.raises(UsageError, match="distillation needs negatives to compare with"):
        objective(replace(scored_batch({"a": [[1.0]]}), teacher_scores=torch.ones(1, 1)))


@pytest.mark.parametrize("objective", [objectives.contrastive, objectives.competitive])
def test_losses_are_taken_of_sums_of_experts(objective):
    plain, groups = batch(make_leaves(13)), {"hybrid": ("global", "lexical")}
    sides = [EncoderOutput(dict(one.representations), summed_experts=groups) for one in (plain.queries, plain.documents)]
    rows = sum(plain.queries[name].scores(plain.documents[name]) for name in groups["hybrid"]).tolist()
    expected = sum(oracles.info_nce(row, query * GROUP) for query, row in enumerate(rows)) / Q
    output = objective(replace(plain, queries=sides[0], documents=sides[1]), regularizers=NO_FLOPS)
    assert output.loss.item() == pytest.approx(expected, rel=1e-4) and output.metrics["loss.hybrid"] == pytest.approx(expected, rel=1e-4)
    assert not {"loss.global", "loss.lexical", "share.global"} & output.metrics.keys()
    assert objective is objectives.contrastive or output.metrics["share.hybrid"] == 1.0


def self_distillation_by_formula(numbers, *, distilling, lexical_weight, lexical_loss, block):
    """BGE-M3's loss, query by query over the documents that are no known positives; `block` queries share documents but for `global`."""
    lexical = torch.relu(numbers["query", "lexical"]) @ torch.relu(numbers["document", "lexical"]).T
    tokens = (numbers["query", "local"].view(Q, 2, 1, 1, D) * numbers["document", "local"].view(1, 1, Q * GROUP, 2, D)).sum(-1)
    scores = {"lexical": lexical, "local": tokens.amax(3).sum(1), "global": numbers["query", "global"] @ numbers["document", "global"].T}
    total, loss = scores["global"] + lexical_weight * scores["lexical"] + scores["local"], 0.0
    for query in range(Q):
        everywhere = [document for document in range(Q * GROUP) if (query, document) not in IGNORED]
        near = [document for document in everywhere if not block or document // GROUP // block == query // block]

        def cross_entropy(score, columns, query=query):
            return -score[query, columns].log_softmax(0)[columns.index(query * GROUP)]

        hard = cross_entropy(scores["global"], everywhere) + cross_entropy(total, near)
        hard = hard + lexical_loss * cross_entropy(scores["lexical"], near) + cross_entropy(scores["local"], near)
        soft, teacher = 0.0, total[query, near].detach().softmax(0)
        for name, weight in (("global", 1.0), ("lexical", lexical_loss), ("local", 1.0)):
            soft = soft + weight * (teacher * (teacher.log() - scores[name][query, near].log_softmax(0))).sum()
        loss = loss + ((hard / 4 + soft / 3) / 2 if distilling else hard / 4) / Q
    return loss


@pytest.mark.parametrize("block", [0, 1, 2])
@pytest.mark.parametrize("step", [0, 2, 3])
def test_self_distillation_is_its_formula_and_has_its_gradient(step, block):
    options = {"lexical_weight": 0.3, "lexical_loss": 0.1} if step else {"lexical_weight": 0.7, "lexical_loss": 0.5}
    ours, theirs = make_leaves(11), make_leaves(11)
    given = {} if step else options  # the defaults are those of the paper
    output = objectives.self_distillation(batch(ours, step=step, ignored=IGNORED), start=3, block=block, **given)
    expected = self_distillation_by_formula(theirs, distilling=step == 3, block=block, **options)
    assert output.loss.item() == pytest.approx(expected.item(), abs=1e-6)
    assert output.metrics.keys() >= {"loss", "loss.sum", *(f"loss.{name}" for name in EXPERTS)}
    assert ("kl.local" in output.metrics) == (step == 3)
    output.loss.backward()
    expected.backward()
    for key in ours:
        assert torch.allclose(ours[key].grad, theirs[key].grad, atol=1e-6), key


@pytest.mark.parametrize("negatives", [0, 3])
def test_options_are_checked_with_a_batch_whose_parts_fit(negatives):
    """Own objectives get it, too: one query, at most one negative, a mask and teacher scores of as many documents."""
    checked = []
    objectives.validate_options(checked.append, negatives)
    ((toy_batch,), size) = checked, min(negatives, 1) + 1
    assert toy_batch.ignore_mask.shape == toy_batch.teacher_scores.shape == toy_batch.own_columns.shape == (1, size)
    assert toy_batch.documents.text_count == toy_batch.group_size == size
