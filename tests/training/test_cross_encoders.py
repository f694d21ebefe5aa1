"""Training of cross-encoders: losses by hand; in parts and by several processes as the plain step."""

import math

import numpy as np
import pytest
import torch

from moeir.architectures.base import EncoderOutput
from moeir.architectures.initialize import build_checkpoint
from moeir.representations.dense import Dense
from moeir.training import objectives
from tests.oracles import training as oracles
from tests.processes import assert_same_training, read_metrics
from tests.training.toy_examples import (
    animal_text,
    assert_same_gradients,
    finetune_by,
    take_step,
    tokenize_in_memory,
    write_training_files,
)

RULES = {"query_length": 12, "document_length": 28}


def batch_of_scores(rows):
    """A batch whose pairs have these scores, a row for each query."""
    count, size = len(rows), len(rows[0])
    pairs = EncoderOutput({"relevance": Dense(torch.tensor(rows).view(-1, 1))})
    ignored = torch.arange(count * size) // size != torch.arange(count)[:, None]
    return objectives.EncodedBatch(EncoderOutput({"relevance": Dense(torch.ones(count, 1))}), pairs, ignored, 0, 1)


@pytest.mark.parametrize(
    ("objective", "rows", "options", "loss"),
    [
        (objectives.lce, [[2.0, 1.0, 0.0]], {}, 0.40760596),  # exp(2) / (exp(2) + exp(1) + exp(0)) = 0.6652
        (objectives.lce, [[2.0, 1.0, 0.0], [1.0, 1.0, -40.0]], {}, (0.40760596 + math.log(2)) / 2),  # 0.5 against 0.5 is log 2
        (objectives.lce, [[2.0, 1.0, 0.0]], {"temperature": 2.0}, 0.68026967),
        (objectives.bce, [[2.0, 1.0, 0.0]], {}, 0.71111229),  # -log σ(2) = 0.1269, -log(1 - σ(1)) = 1.3133, -log(1 - σ(0)) = 0.6931
        (objectives.bce, [[2.0, 1.0]], {"positive_weight": 3.0}, (3 * 0.12692801 + 1.31326169) / 2),
    ],
)
def test_losses_of_groups_are_those_by_hand(objective, rows, options, loss):
    assert float(objective(batch_of_scores(rows), **options).loss) == pytest.approx(loss)


@pytest.fixture(scope="module")
def stepped(tiny_model):
    """`stepped(…)`: the loss of a batch, its metrics and every gradient."""

    def step(objective=objectives.lce, **options):
        return take_step(build_checkpoint(tiny_model, "cross-encoder", RULES), objective, batch_size=3, **options)

    return step


def test_a_group_in_parts_has_the_gradients_of_the_whole(stepped):
    loss, metrics, tokens, gradients, _ = stepped(random=False)
    for at_once in (1, 100):
        cached_loss, cached_metrics, count, cached, _ = stepped(at_once=at_once, random=False)
        assert cached_loss == pytest.approx(loss, abs=1e-5) and count == tokens and cached_metrics == pytest.approx(metrics, abs=1e-5)
        assert_same_gradients(cached, gradients)
    dropped = stepped()[0]
    assert stepped(seed=6)[0] != dropped and stepped(recompute=True)[0] == dropped


@pytest.mark.parametrize("objective", [objectives.lce, objectives.contrastive])
def test_a_step_is_the_loss_of_every_pair_read_alone(objective, stepped):
    """The pairs of another query are no candidates, also for `contrastive`, which takes all that a retriever's batch has."""
    *_, task = stepped(objective)
    task.model.eval()
    ids = task.sampler.batch_at(0)
    checkpoint = task.checkpoint
    expected = []
    for number, query in enumerate(ids.queries):
        scores = []
        for document in ids.documents[4 * number : 4 * number + 4]:
            one = tokenize_in_memory(checkpoint, {"q": animal_text(int(query[1:]) + 3)}, {"d": animal_text(int(document[1:]))})
            tokens = checkpoint.pair_tokenizer.make_pairs(one.cache, one.cache, np.array([0]), np.array([1])).pack([0])
            scores.append(float(checkpoint.architecture(tokens)["relevance"].vectors.detach()))
        expected.append(oracles.info_nce(scores, 0))
    assert task.compute_loss(0)[0].item() == pytest.approx(np.mean(expected), abs=1e-5)


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """Texts of 1 to 13 words, examples of them with a teacher's scores, a development run."""
    scores = {"positive_scores": lambda _: [3.0, 2.0], "negative_scores": lambda _: [0.5, 0.25, 0.0, -1.0]}
    return write_training_files(tmp_path_factory.mktemp("shop"), **scores)


@pytest.fixture
def learn(shop, tiny_model, tiny_model_without_dropout, tmp_path):
    """`learn(size, *options)`: a training by so many processes -> its folder, and the result of each."""

    def learned(size, *options, name=None, dropout=True):
        output, weights = tmp_path / (name or f"by-{size}"), tiny_model if dropout else tiny_model_without_dropout
        flags = ("--model", weights, "--arch", "cross-encoder", "--objective", "lce", *options)
        return output, finetune_by(size, shop, *flags, output=output)

    return learned


def dev_flags(shop):
    return ("--dev-queries", shop / "queries.tsv", "--dev-qrels", shop / "dev.qrels", "--dev-run", shop / "dev.trec", "--evaluate-every", 2)


def test_processes_share_a_group_and_learn_what_one_does(learn, shop):
    alone, results = learn(1, *dev_flags(shop), dropout=False)
    assert results[0]["code"] == 0, results
    assert [line["dev.fused.nDCG@10"] for line in read_metrics(alone) if "dev.fused.nDCG@10" in line]
    both, results = learn(2, *dev_flags(shop), "--gradient-cache", 40, dropout=False)
    assert [one["code"] for one in results] == [0, 0], results
    assert_same_training(alone, both)
    card = (alone / "README.md").read_text()
    assert "Objective `lce`, 4 steps" in card and "moeir rerank --model CHECKPOINT" in card


def test_what_the_training_measures_is_what_rerank_and_evaluate_say(learn, shop, moeir, tmp_path):
    objective = ("--arch", "cross-encoder:adapters=4", "--objective", "bce:positive_weight=7")
    checkpoint, results = learn(1, *dev_flags(shop), "--keep", "last", *objective)
    assert results[0]["code"] == 0, results
    flags = ("--run", shop / "dev.trec", "--queries", shop / "queries.tsv", "--corpus", shop / "documents.tsv", "--dtype", "float32")
    assert moeir("rerank", "--model", checkpoint, *flags, "--output", tmp_path / "out.trec").code == 0
    table = moeir("evaluate", "--run", tmp_path / "out.trec", "--qrels", shop / "dev.qrels", "--measure", "nDCG@10", "--form", "tsv").stdout
    measured = [line["dev.fused.nDCG@10"] for line in read_metrics(checkpoint) if "dev.fused.nDCG@10" in line]
    assert float(table.split()[-1]) == pytest.approx(measured[-1], abs=1e-6)


def test_too_many_processes_a_development_set_without_its_run_and_its_loss_are_refused(learn, shop):
    _, results = learn(2, "--batch-size", 1, "--negatives", 0, "--objective", "contrastive", name="few")
    assert [one["code"] for one in results] == [2, 2]
    assert "1 pairs are too few for 2 processes" in results[0]["stderr"]
    _, results = learn(1, "--dev-queries", shop / "queries.tsv", "--dev-qrels", shop / "dev.qrels", name="bare")
    assert results[0]["code"] == 2 and "a cross-encoder reranks; name the run with --dev-run" in results[0]["stderr"]
    _, results = learn(1, *dev_flags(shop), "--dev-measure", "loss", name="loss")
    assert results[0]["code"] == 2 and "--dev-measure loss: a cross-encoder is measured by what it reranks" in results[0]["stderr"]
