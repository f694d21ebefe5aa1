"""Gradient caching and recomputed layers on the device, with dropout: what is computed again drops what was dropped before."""

import pytest
import torch

from moeir.architectures.initialize import build_checkpoint
from moeir.backbones.device import set_determinism
from moeir.training import grad_cache
from tests.training.test_grad_cache import KINDS
from tests.training.toy_examples import take_step

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@pytest.fixture
def stepped(tiny_model_with_head, device):
    """`stepped(kind, …)`: the loss of a batch, its facts and every gradient, of strictly deterministic algorithms."""

    def step(kind, *, precision="float32", **options):
        arch, objective = KINDS[kind]
        arch = arch.replace("shared_layers=2", "shared_layers=1")  # of two layers
        checkpoint = build_checkpoint(tiny_model_with_head, arch, {"query_length": 12, "document_length": 24})
        loss, facts, _, gradients, _ = take_step(checkpoint, objective, batch_size=4, device=device, dtype=PRECISIONS[precision], **options)
        return loss, facts, gradients

    set_determinism(device, deterministic=True)
    return step


@pytest.mark.parametrize("kind, precision", [("came", "float32"), ("colbert", "bfloat16"), ("taser", "bfloat16"),
                                             ("came, adapters", "bfloat16")])  # fmt: skip
def test_parts_that_are_encoded_again_have_the_gradients_of_parts_that_are_kept(kind, precision, stepped, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(grad_cache, "_encode_recomputed", lambda encode, tokens, parameters: encode(tokens))
        loss, facts, gradients = stepped(kind, at_once=40, precision=precision)
    again, others, cached = stepped(kind, at_once=40, precision=precision)
    assert again == loss and others == facts and cached.keys() == gradients.keys()
    largest = max(float(one.abs().max()) for one in gradients.values())
    for name, one in gradients.items():  # parts are added up in another order
        assert (cached[name] - one).abs().max() <= 1e-6 * largest + 1e-4 * one.abs().max(), name


RECOMPUTED = [("came", "bfloat16"), ("taser", "float32"), ("came, adapters", "bfloat16"), ("taser by token, adapters", "float32")]


@pytest.mark.parametrize("kind, precision", RECOMPUTED)
def test_recomputed_layers_change_no_bit(kind, precision, stepped):
    loss, facts, gradients = stepped(kind, precision=precision)
    assert stepped(kind, precision=precision, seed=6)[0] != loss, "dropout is there to be repeated"
    again, others, recomputed = stepped(kind, recompute=True, precision=precision)
    assert again == loss and others == facts and recomputed.keys() == gradients.keys()
    assert all(torch.equal(recomputed[name], one) for name, one in gradients.items())
