"""The weight of the encoder's own masked-language-model loss, beside that of a decoder."""

import pytest
import torch

from moeir.errors import UsageError
from moeir.pretraining import base
from moeir.pretraining.cotmae import Cotmae, CotmaeQc
from moeir.pretraining.mlm import Cocondenser, Condenser
from moeir.pretraining.mote import Mote
from tests.pretraining.toy_models import architecture, batch, objective

KINDS = (Cotmae, CotmaeQc, Condenser, Cocondenser, Mote)


def make(kind, **options):
    return objective(kind, architecture("mote" if kind is Mote else "dense"), **options).eval()


def gradients(model, loss):
    return torch.autograd.grad(loss, list(model.parameters()), allow_unused=True, materialize_grads=True)


def mlm_share(metrics):
    return sum(value for name, value in metrics.items() if name.startswith("loss.mlm"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("weight", [0.25, 1.0])
def test_the_loss_counts_the_encoders_own_part_by_its_weight(kind, weight):
    inputs = batch(kind.context)
    plain, metrics = make(kind)(inputs)
    loss, weighted = make(kind, mlm_weight=weight)(inputs)
    assert loss.item() == pytest.approx((plain + (weight - 1) * mlm_share(metrics)).item(), rel=1e-6)
    assert weighted.keys() == metrics.keys() and mlm_share(weighted) == mlm_share(metrics), "metrics are without weights"
    if weight == 1.0:
        assert loss.equal(plain)


@pytest.mark.parametrize("kind", KINDS)
def test_with_weight_0_nothing_of_it_is_computed_and_the_rest_is_what_it_was(kind, monkeypatch):
    inputs, plain = batch(kind.context), make(kind)
    parts = {}
    combine = plain.combine_losses
    monkeypatch.setattr(plain, "combine_losses", lambda named, weights=None: parts.update(named) or combine(named, weights))
    plain(inputs)
    rest = sum(part.value for name, part in parts.items() if not name.startswith("mlm"))
    expected = gradients(plain, rest)

    def refuse(*_):
        raise AssertionError("computed in spite of mlm_weight=0")

    monkeypatch.setattr(base, "mlm_loss", refuse)
    model = make(kind, mlm_weight=0)
    loss, metrics = model(inputs)
    assert not [name for name in metrics if "mlm" in name]
    assert loss.item() == pytest.approx(rest.item(), rel=1e-6)
    for one, other in zip(gradients(model, loss), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


def test_a_text_that_is_neither_predicted_nor_decoded_is_not_encoded(monkeypatch):
    model = make(Mote, mlm_weight=0, decode_from_query="none")
    encode, sides = model.encode, []
    monkeypatch.setattr(model, "encode", lambda texts: sides.append(texts.tokens.side) or encode(texts))
    model(batch("query"))
    assert sides == ["document"]


@pytest.mark.parametrize("kind, options", [(CotmaeQc, {}), (Mote, {"sparse_weight": 0}), (Mote, {"sparse": False})])
def test_weights_that_are_all_0_are_refused(kind, options):
    with pytest.raises(UsageError, match=r"decoder_weight=0, mlm_weight=0.*nothing would be learned"):
        make(kind, mlm_weight=0, decoder_weight=0, **options)
