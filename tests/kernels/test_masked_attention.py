"""Attention to chosen tokens: the plain form text by text, and the same in a padded batch."""

import math

import pytest
import torch

from moeir.kernels.attention import PackedLayout, additive_mask, causal_mask, masked_attention, padded_sdpa
from tests.oracles import pretraining as oracles

LENGTHS = (3, 3, 5, 1, 4, 4, 7)


def inputs(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(sum(LENGTHS), 2, 4, generator=generator).requires_grad_() for _ in range(3)]


def layout():
    return PackedLayout(LENGTHS, torch.tensor([0, *LENGTHS]).cumsum(0))


def plain(query, key, value, mask):
    parts = zip(*(part.flatten(1).split(LENGTHS) for part in (query, key, value)), strict=True)
    mixed = [
        oracles.masked_attention(*(part[None] for part in text), mask(number, len(text[0])), 2)[0] for number, text in enumerate(parts)
    ]
    return torch.cat(mixed).unflatten(-1, (2, 4))


def own(texts, length):
    """A different pattern for each text: the sum of both positions and the text's index is divisible by 3."""
    positions = torch.arange(length)
    return ((positions[:, None] + positions + texts[:, None, None]) % 3 == 0) | (positions == 0)


def padded(query, key, value, batch, visibility):
    """The form that CUDA takes, on a CPU."""
    attended = batch.padding.key_mask
    allowed = visibility(torch.arange(len(attended)), attended.shape[1]) & attended[:, None]
    return padded_sdpa(query, key, value, batch, additive_mask(allowed[:, None], query.dtype))


@pytest.mark.parametrize("form", [masked_attention, padded])
@pytest.mark.parametrize("pattern", ["own", -1, 1, 3])
def test_values_and_gradients_are_those_of_the_plain_form(form, pattern):
    visibility = own if pattern == "own" else causal_mask(pattern)

    def mask(number, length):
        if pattern != "own":
            return oracles.window_mask(length, pattern)
        return torch.where(own(torch.tensor([number]), length)[0], 0.0, -math.inf)

    factors, results = torch.randn(sum(LENGTHS), 2, 4, generator=torch.Generator().manual_seed(9)), []
    for each in (lambda *tensors: plain(*tensors, mask), lambda *tensors: form(*tensors, layout(), visibility)):
        tensors = inputs()
        output = each(*tensors)
        (output * factors).sum().backward()
        results.append([output.detach(), *(part.grad for part in tensors)])
    for expected, value in zip(*results, strict=True):
        assert torch.allclose(value, expected, atol=1e-5)


@pytest.mark.parametrize("window", [-1, 1, 2, 3, 9])
def test_the_window_is_the_first_token_and_the_last_few(window):
    mask = oracles.window_mask(7, window)
    assert torch.equal(causal_mask(window)(torch.arange(1), 7)[0], mask == 0)
