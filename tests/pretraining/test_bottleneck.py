"""What the vector is worth to a decoder: its loss with the vectors of other texts minus that with the true ones."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from moeir.pretraining import decoder, task
from moeir.pretraining.base import TokenLoss
from moeir.pretraining.cotmae import Cotmae, CotmaeQc
from moeir.pretraining.mlm import Cocondenser, Condenser
from moeir.pretraining.mote import Mote
from moeir.pretraining.task import PretrainingTask
from moeir.training.trainer import metrics_to_floats
from tests.oracles import pretraining as oracles
from tests.pretraining.test_objectives import cls_states, encode
from tests.pretraining.toy_models import BERT, CONTEXTS, architecture, batch, mask_texts, objective

DROPOUT = replace(BERT, dropout=0.1, attention_dropout=0.1)
PARTS = {Cotmae: ["decoder"], CotmaeQc: ["decoder"], Condenser: ["head"], Cocondenser: ["head"]}
PARTS[Mote] = ["dense.document", "sparse.document", "dense.query", "sparse.query"]


def measuring(kind, shape=BERT, **options):
    model = objective(kind, architecture("mote" if kind is Mote else "dense", shape), **options)
    model.measures_bottleneck = True
    return model


def gains(metrics):
    (values,) = metrics_to_floats([metrics])
    return {name.removeprefix("bottleneck_gain."): value for name, value in values.items() if name.startswith("bottleneck_gain")}


def test_each_text_has_the_vector_of_the_next_and_each_block_is_shuffled_by_itself():
    """Of four vectors 10 · e_i the loss is log(e^10 + 3) - 10 with the true ones, log(e^10 + 3) with any other."""
    model, orders = measuring(CotmaeQc), []
    copied = model.decoder_loss(10 * torch.eye(4), lambda vectors: TokenLoss(F.cross_entropy(vectors, torch.arange(4)), torch.tensor(4), 4))
    assert copied.value.item() == pytest.approx(math.log(math.exp(10) + 3) - 10, abs=1e-6)
    assert copied.gain.item() == pytest.approx(10.0, abs=1e-5)

    def decode(vectors):
        orders.append(vectors[:, 0].tolist())
        return TokenLoss(torch.zeros(()), torch.tensor(0), 0)

    for blocks in (1, 2, 3):
        model.decoder_loss(torch.arange(6.0)[:, None], decode, blocks=blocks)
    assert orders[::2] == [[1, 2, 3, 4, 5, 0], [1, 2, 0, 4, 5, 3], [1, 0, 3, 2, 5, 4]]
    assert model.decoder_loss(torch.ones(2, 1), decode, blocks=2).gain is None, "one text a block: there is no other"


@pytest.mark.parametrize("kind", PARTS)
def test_a_decoder_that_ignores_its_vector_owes_it_nothing(kind, monkeypatch):
    """Also with dropout: both decodings have the same random numbers."""
    model = measuring(kind, DROPOUT).train()
    assert all(abs(gain) > 1e-6 for gain in gains(model(batch(kind.context))[1]).values()), "as it is, it does not ignore it"
    monkeypatch.setattr(decoder, "insert_vectors", lambda vectors, states, tokens: states)
    assert gains(model(batch(kind.context))[1]) == dict.fromkeys([*PARTS[kind], "bottleneck_gain"], 0.0)


def test_the_gain_is_that_of_text_by_text():
    model, inputs = measuring(CotmaeQc).eval(), batch("query")
    encoder, states = encode(model, inputs.anchors)
    vectors = cls_states(states)
    true, shuffled = (
        oracles.causal_decoder_loss(model.decoder, encoder, each, CONTEXTS, 3) for each in (vectors, vectors[1:] + vectors[:1])
    )
    assert gains(model(inputs)[1])["decoder"] == pytest.approx((shuffled - true).item(), abs=1e-5)


def test_the_gain_of_neighbours_never_comes_from_the_text_itself():
    """CoT-MAE decodes context b from anchor b's vector and the reverse: shuffled from that of anchor b + 1, not of a context."""
    model, inputs = measuring(Cotmae).eval(), batch()
    encoder, anchors = encode(model, inputs.anchors)
    contexts = encode(model, inputs.contexts)[1]
    again = oracles.split_batch(inputs.decoder_contexts) + oracles.split_batch(inputs.decoder_anchors)

    def loss(vectors):
        embedded = [encoder.embeddings(mask_texts([ids], "document", set()).tokens) for _, ids, _ in again]
        decoded = [oracles.run_layers(model.decoder.layers, *pair) for pair in zip(vectors, embedded, strict=True)]
        return oracles.mlm_loss(encoder, decoded, again)

    first, second = cls_states(anchors), cls_states(contexts)
    expected = loss(first[1:] + first[:1] + second[1:] + second[:1]) - loss(first + second)
    assert gains(model(inputs)[1])["decoder"] == pytest.approx(expected.item(), abs=1e-5)


def test_a_decoder_that_learns_a_few_texts_by_heart_uses_its_vector():
    """Not so CoT-MAE's here: the words that it sees tell the four texts apart already."""
    model, texts = measuring(Mote, replace(BERT, layers=2, initializer_range=0.05)).train(), batch("query")
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-2)
    for step in range(40):
        model.measures_bottleneck = step == 39
        loss, metrics = model(texts)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    assert all(gain > 0.5 for gain in gains(metrics).values()), gains(metrics)


class SameBatch:
    """A sampler with the same batch at every step."""

    anchor_count, batch_size = 4, 4

    def __init__(self, context, steps=6):
        self.context, self.steps = context, steps

    def batch_at(self, step, rank=0, ranks=1):
        return replace(batch(self.context), step=step, steps=self.steps)


@pytest.mark.parametrize("steps, accumulate, measured", [(10, 1, [3, 7, 9]), (12, 2, [6, 7, 10, 11])])
def test_every_so_many_steps_and_the_last_are_measured(steps, accumulate, measured, monkeypatch):
    monkeypatch.setattr(task, "BOTTLENECK_EVERY", 4)
    training = PretrainingTask(measuring(CotmaeQc), SameBatch("query", steps), torch.float32, accumulate=accumulate)
    assert [step for step in range(steps) if "bottleneck_gain" in training.compute_loss(step)[1]] == measured


@pytest.mark.parametrize("kind", PARTS)
def test_measuring_changes_no_random_number_and_no_gradient(kind, monkeypatch):
    gradients = []
    for every in (1, 1000):
        monkeypatch.setattr(task, "BOTTLENECK_EVERY", every)
        training = PretrainingTask(measuring(kind, DROPOUT).train(), SameBatch(kind.context), torch.float32)
        torch.manual_seed(0)  # once: a measurement that drew random numbers would change those of the next step
        for step in range(2):
            loss, metrics, _ = training.compute_loss(step)
            assert ("bottleneck_gain" in metrics) == (every == 1)
            loss.backward()
        gradients.append([parameter.grad for parameter in training.model.parameters()])
    assert all(one is other is None or one.equal(other) for one, other in zip(*gradients, strict=True))
