"""Shares by how fast losses fall: speeds and shares written out, the kinds of queries, and a killed training's same bytes."""

import math
from functools import partial

import pytest
import torch

from moeir.architectures.initialize import build_checkpoint
from moeir.errors import UsageError
from moeir.training import objectives
from moeir.training.competition import LearningSpeed
from moeir.training.regularizers import RegularizerWeights
from moeir.training.retrieval_task import RetrievalTask
from moeir.training.sampling import BatchIds, MultiDatasetSampler, make_sampler
from moeir.training.trainer import Schedule, train
from tests.training.test_objectives import IGNORED, NO_FLOPS, Q, batch, make_leaves
from tests.training.toy_examples import Killed, identical, kill_at, make_examples, tokenize_in_memory, untimed_metrics

EXPERTS = ("lexical", "local", "global")
LEARNABLE = partial(
    objectives.competitive, standardised=0.0, shares="learnability", temperature=0.1,
    regularizers=RegularizerWeights(flops_query=1e-4, flops_document=1e-4),
)  # fmt: skip


def expected_speed(batches, kind, expert, kept_batches):
    """The part by which the recent mean loss is below the earlier one: queries are weighted by (1 - 1/w) ** how many of the kind came
    later, those of one batch alike."""
    means = []
    for window in (32, 256):
        total = weight = 0.0
        later = 0
        for losses, kinds in reversed(batches[:kept_batches]):
            own = [losses[expert][query] for query, one in enumerate(kinds) if one == kind]
            if own:
                share = (1 - 1 / window) ** later * (1 - (1 - 1 / window) ** len(own))
                total, weight, later = total + share * sum(own) / len(own), weight + share, later + len(own)
        means.append(total / weight if weight else 0.0)
    recent, earlier = means
    return max(0.0, (earlier - recent) / earlier) if earlier else 0.0


def test_speeds_are_those_of_weighted_means_over_all_queries_of_the_kind():
    generator = torch.Generator().manual_seed(1)
    speed, batches = LearningSpeed(3, 2), []
    for step in range(60):
        losses, kinds = torch.rand(2, 5, generator=generator) * (3 - step / 25), torch.randint(0, 2, (5,), generator=generator)
        speed.update(losses, kinds)
        batches.append((losses.tolist(), kinds.tolist()))
    found = speed.of(torch.tensor([0, 1, 2]))
    expected = [[expected_speed(batches, kind, expert, 60) for kind in range(3)] for expert in range(2)]
    assert found.tolist() == [pytest.approx(row, rel=1e-4, abs=1e-6) for row in expected]
    assert 0.2 < found[0, 0] < 1 and found[:, 2].tolist() == [0, 0], "no query of the kind"


def test_a_loss_that_stays_or_rises_has_no_speed_and_gets_the_least_share():
    speed = LearningSpeed(1, 3)
    for step in range(100):
        speed.update(torch.tensor([[2.0], [3.0 - step / 50], [1.0 + step / 50]]), torch.tensor([0]))
    falls = speed.of(torch.tensor([0]))[:, 0].tolist()
    assert falls[0] == pytest.approx(0, abs=1e-5) and falls[1] > 0.1 and falls[2] == 0


def test_the_loss_is_weighed_by_the_speeds_before_the_batch_which_then_counts():
    speed, kinds, history = LearningSpeed(4, 3), torch.tensor([0, 3, 0]), []
    for seed in range(8):
        numbers = make_leaves(seed)
        toy = batch(numbers, ignored=IGNORED)
        toy = objectives.EncodedBatch(toy.queries, toy.documents, toy.ignore_mask, 0, 10, None, kinds=kinds, speed=speed)
        output = objectives.competitive(toy, standardised=0.0, shares="learnability", temperature=0.002, regularizers=NO_FLOPS)
        losses = []
        for name in EXPERTS:
            scores = toy.queries[name].scores(toy.documents[name]).detach()
            rows = scores.masked_fill(toy.ignore_mask, -math.inf).tolist()
            losses.append([math.log(sum(math.exp(one) for one in row)) - row[4 * query] for query, row in enumerate(rows)])
        expected = 0.0
        for query, kind in enumerate(kinds.tolist()):
            powers = [math.exp(expected_speed(history, kind, expert, seed) / 0.002) for expert in range(3)]
            expected += sum(power / sum(powers) * losses[expert][query] for expert, power in enumerate(powers)) / Q
        assert output.loss.item() == pytest.approx(expected, rel=1e-3)
        history.append((losses, kinds.tolist()))
    assert max(expected_speed(history, kind, expert, 8) for kind in (0, 3) for expert in range(3)) > 0.002, "shares differ"


def test_a_batch_without_kinds_is_refused():
    with pytest.raises(UsageError, match="the batch has no kinds of queries"):
        objectives.competitive(batch(make_leaves()), shares="learnability")


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


@pytest.fixture(scope="module")
def learn(tiny_model_with_head):
    """`learn(folder, at)` trains six steps by learnability, of which `at` kills one -> weights, state of the objective."""
    queries, documents = {f"q{one}": f"owl {'bat ' * (one % 3)}hen" for one in range(8)}, {f"d{one}": f"owl bee {one}" for one in range(9)}

    def learned(folder, at=None, datasets=1):
        folder.mkdir(exist_ok=True)
        checkpoint = build_checkpoint(tiny_model_with_head, "came:shared_layers=2,local_dim=8", {"query_length": 16, "document_length": 32})
        sampler = make_sampler(make_examples(8), batch_size=2, negatives=3, seed=1, source="toy")
        joint = MultiDatasetSampler((sampler,) * datasets, (1.0,) * datasets, 1) if datasets > 1 else sampler
        texts = tokenize_in_memory(checkpoint, queries, documents, datasets=datasets)
        speed = LearningSpeed(texts.kind_count, 3)
        task = RetrievalTask(checkpoint, joint, texts, kill_at(at, LEARNABLE), 6, torch.float32, speed=speed)
        train(task, Schedule(6, 1e-3, save_minutes=0.0), folder, device="cpu", objective_state=speed.tensors)
        return {name: value.clone() for name, value in checkpoint.architecture.state_dict().items()}, speed.tensors

    return learned


@pytest.mark.parametrize("at, datasets", [(1, 1), (4, 2)])
def test_a_killed_training_goes_on_with_the_same_speeds_to_the_same_bytes(at, datasets, learn, tmp_path):
    expected, state = learn(tmp_path / "whole", datasets=datasets)
    with pytest.raises(Killed):
        learn(tmp_path / "killed", at, datasets=datasets)
    weights, state_again = learn(tmp_path / "killed", datasets=datasets)
    assert identical(weights, expected) and untimed_metrics(tmp_path / "killed") == untimed_metrics(tmp_path / "whole")
    assert all(torch.equal(state[name], state_again[name]) for name in state) and float(state["weights"].sum()) > 0
