"""What is chosen by what a card can do: on pretended cards of several kinds, and on one whose memory is full."""

import pytest
import torch

from moeir.kernels import attention
from tests.device import fake_cuda
from tests.device.conftest import assert_similar_losses, read_metrics
from tests.device.operation_counts import LAUNCH
from tests.device.test_finetune import CAME, KINDS, KINDS_OF_HALF, ROUTED

CARDS = {"older": (CAME, (7, 5), "float32"), "newer": (ROUTED, (8, 0), "bfloat16")}


@pytest.mark.parametrize("card", CARDS)
def test_older_and_newer_cards_learn_what_the_cpu_does(card, learn, quiet):
    arch, capability, dtype = CARDS[card]
    training = (arch, (KINDS | KINDS_OF_HALF)[arch])
    with fake_cuda.activate(capability=capability) as machine:
        assert_similar_losses(read_metrics(learn(*training, dtype="auto")), read_metrics(learn(*training, dtype=dtype, on="cpu")))
    kernels = {name for _, name, _, _ in machine.counts.source_lines(LAUNCH)}
    assert ("_flash_attention_forward" in kernels) == (dtype == "bfloat16")
    assert not any("_grouped_mm" in kernel for kernel in kernels), "grouped products are taken where they wait for nothing"


def test_an_older_torch_learns_without_the_kernels_that_it_lacks(learn, quiet, monkeypatch):
    """In torch 2.9 grouped products are not there, and a torch may be built without FlashAttention, or have another operator for it."""
    training = (ROUTED, KINDS_OF_HALF[ROUTED])
    with fake_cuda.activate() as machine, monkeypatch.context() as patch:
        patch.setattr(torch, "__version__", torch.torch_version.TorchVersion("2.9.1+cu128"))
        patch.setattr(attention, "has_flash_operator", lambda: False)
        losses = read_metrics(learn(*training, dtype="bfloat16"))
    assert_similar_losses(losses, read_metrics(learn(*training, dtype="bfloat16", on="cpu")))
    kernels = {name for _, name, _, _ in machine.counts.source_lines(LAUNCH)}
    assert kernels and not any("_flash_attention_forward" in kernel or "_grouped_mm" in kernel for kernel in kernels)


def test_half_precision_is_refused_by_a_card_without_it(learn):
    with fake_cuda.activate(capability=(7, 5)):
        learn("dense", dtype="bfloat16", fails="--dtype bfloat16: cuda:1")


def test_memory_that_runs_out_is_told_with_what_takes_less(learn, machine):
    machine.fail_at = 300
    learn("dense", dropout=True, fails="lower --batch-size, set or lower --gradient-cache, add --recompute")
    assert machine.fail_at is None
    learn("dense", dropout=True)
