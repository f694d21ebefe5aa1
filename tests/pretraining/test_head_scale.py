"""The scale of a vocabulary head at the start of a pre-training: never worse than equal logits."""

import math
from dataclasses import replace

import pytest
import torch

from moeir.heads import mlm_head
from moeir.pretraining.base import MAX_EXCESS, scale_heads
from moeir.pretraining.cotmae import Cotmae
from moeir.pretraining.mote import Mote
from tests.pretraining.toy_models import BERT, architecture, batch, objective

WIDE = replace(BERT, initializer_range=0.5)


def make(kind, fit=True, **options):
    """An objective whose head is fitted for sparse weights on unmasked random tokens."""
    base = architecture("mote" if kind is Mote else "dense", WIDE, **options)
    model = objective(kind, base).eval()
    for encoder in {base.encoder, base.encoder_for("document")} if fit else ():
        torch.manual_seed(0)
        states, ids = torch.randn(400, BERT.hidden), torch.randint(4, BERT.vocabulary, (400,))
        mlm_head.fit_mlm_head(encoder.vocabulary_head, encoder.embeddings.words.weight, states, ids, strongest=8.0)
    return model


def mlm_losses(model, kind):
    with torch.no_grad():
        return {name: float(value) for name, value in model(batch(kind.context))[1].items() if name.startswith("loss.mlm")}


@pytest.mark.parametrize("kind, options", [(Cotmae, {}), (Mote, {}), (Mote, {"encoders": "separate"})])
def test_a_head_fitted_for_sparse_weights_starts_no_worse_than_equal_logits(kind, options, caplog):
    model = make(kind, **options)
    uniform = math.log(BERT.vocabulary)
    assert max(mlm_losses(model, kind).values()) > uniform + 0.2
    caplog.set_level("INFO")
    scale_heads(model.train(), batch(kind.context))
    assert model.training
    assert max(mlm_losses(model.eval(), kind).values()) < uniform + 0.1
    for head in {model.architecture.encoder_for(side).vocabulary_head for side in ("query", "document")}:
        for part in (head.norm.weight, head.norm.bias, head.bias):
            part.data.mul_(2**0.5)
    assert max(mlm_losses(model, kind).values()) > uniform + MAX_EXCESS  # the next larger factor is too large
    assert caplog.text.count("above that of equal logits, 3.69: logits of the vocabulary head are scaled by") == 1 + ("encoders" in options)


def test_which_terms_are_above_zero_stays():
    model, states = make(Mote), torch.randn(50, BERT.hidden)
    encoder = model.architecture.encoder
    with torch.no_grad():
        before = encoder.logits(states)
        scale_heads(model, batch("query"))
        after = encoder.logits(states)
    assert not torch.allclose(before, after)
    torch.testing.assert_close(before / before.std(), after / after.std(), rtol=1e-3, atol=1e-4)


def test_a_head_that_is_better_than_equal_logits_keeps_every_bit():
    model = make(Cotmae, fit=False)
    encoder, inputs = model.architecture.encoder, batch()
    with torch.no_grad():
        encoder.vocabulary_head.norm.weight.fill_(1e-3)
        encoder.vocabulary_head.norm.bias.zero_()
        encoder.vocabulary_head.bias.copy_(torch.bincount(inputs.anchors.original_ids, minlength=BERT.vocabulary).float().add(0.1).log())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    scale_heads(model, inputs)
    assert all(value.equal(before[name]) for name, value in model.state_dict().items())
