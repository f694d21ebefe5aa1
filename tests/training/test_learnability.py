"""Shares by how fast losses fall: speeds and shares written out, the kinds of queries, and a killed training's same bytes."""

from dataclasses import replace

import pytest
import torch

from moeir.architectures.initialize import build_checkpoint
from moeir.training import objectives
from moeir.training.competition import LearningSpeed
from moeir.training.sampling import BatchIds
from tests.training.test_objectives import IGNORED, NO_FLOPS, Q, batch, by_loop, make_leaves
from tests.training.toy_examples import tokenize_in_memory


def expected_speed(batches, kind, expert):
    """The part by which the recent mean loss is below the earlier one: queries are weighted by (1 - 1/w) ** how many of the kind came
    later, those of one batch alike."""
    means = []
    for window in (32, 256):
        total = weight = 0.0
        later = 0
        for losses, kinds in reversed(batches):
            own = [losses[expert][query] for query, one in enumerate(kinds) if one == kind]
            if own:
                share = (1 - 1 / window) ** later * (1 - (1 - 1 / window) ** len(own))
                total, weight, later = total + share * sum(own) / len(own), weight + share, later + len(own)
        means.append(total / weight if weight else 0.0)
    recent, earlier = means
    return max(0.0, (earlier - recent) / earlier) if earlier else 0.0


def test_speeds_are_those_of_weighted_means_over_all_queries_of_the_kind():
    generator = torch.Generator().manual_seed(1)
    speed, batches = LearningSpeed(3, 3), []
    for step in range(60):
        size = torch.tensor([[3 - step / 25], [3 - step / 25], [1 + step / 25]])  # the last expert's losses rise
        losses, kinds = torch.rand(3, 5, generator=generator) * size, torch.randint(0, 2, (5,), generator=generator)
        speed.update(losses, kinds)
        batches.append((losses.tolist(), kinds.tolist()))
    found = speed.of(torch.tensor([0, 1, 2]))
    expected = [[expected_speed(batches, kind, expert) for kind in range(3)] for expert in range(3)]
    assert found.tolist() == [pytest.approx(row, rel=1e-4, abs=1e-6) for row in expected]
    assert 0.2 < found[0, 0] < 1 and found[2].tolist() == [0, 0, 0] == found[:, 2].tolist(), "no query of the last kind"


def test_the_loss_is_weighed_by_the_speeds_before_the_batch_which_then_counts():
    speed, before, kinds = LearningSpeed(4, 3), LearningSpeed(4, 3), torch.tensor([0, 3, 0])
    for seed in range(8):
        numbers = make_leaves(seed)
        toy = replace(batch(numbers, ignored=IGNORED), kinds=kinds, speed=speed)
        output = objectives.competitive(toy, standardised=0.0, shares="learnability", temperature=0.002, regularizers=NO_FLOPS)
        losses = torch.tensor(list(by_loop(numbers)["loss"].values())).view(3, Q)
        shares = (before.of(kinds) / 0.002).softmax(0)
        assert output.loss.item() == pytest.approx((shares * losses).sum().item() / Q, rel=1e-3)
        before.update(losses, kinds)
    assert before.of(kinds).max() > 0.002, "shares differ"


QUERIES = {"none": "bat", "half": "owl hen", "three": "owl bee fox hen", "all": "owl owl bee", "empty": ""}
DOCUMENTS = {"d": "owl bee fox cat", "e": "eel"}


def test_a_kind_is_the_quarter_of_a_querys_distinct_tokens_that_its_positive_has(tiny_model_with_head):
    checkpoint = build_checkpoint(tiny_model_with_head, "came:shared_layers=2,local_dim=8", {"query_length": 16, "document_length": 32})
    texts = tokenize_in_memory(checkpoint, QUERIES, DOCUMENTS)
    ids = BatchIds(tuple(QUERIES), ("d", "e") * len(QUERIES), (frozenset("d"),) * len(QUERIES))
    [empty], _ = checkpoint.token_ids([""], "query")
    template = frozenset(empty)
    assert texts.kind_count == 4
    without_template = type(texts)(texts.cache, texts.rows, template_ids=template)
    assert without_template.query_kinds(ids).tolist() == [0, 1, 2, 3, 0]
    several = tokenize_in_memory(checkpoint, QUERIES, DOCUMENTS, datasets=3)
    assert several.kind_count == 3
    assert several.query_kinds(BatchIds(ids.queries, ids.documents, ids.known_positives, dataset=2)).tolist() == [2] * 5
