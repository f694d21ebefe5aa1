"""Attention of decoders, to the first token and the last few: the plain form text by text, and the form for CUDA, in a padded batch."""

import pytest
import torch

from moeir.kernels.attention import PackedLayout, additive_mask, causal_attention, causal_mask, padded_sdpa
from tests.oracles import pretraining as oracles

LENGTHS = (3, 3, 5, 1, 4, 4, 7)


def plain(query, key, value, layout, window):
    """Text by text, with an additive mask."""
    texts = zip(*(part.flatten(1).split(layout.lengths) for part in (query, key, value)), strict=True)
    masks = (oracles.window_mask(length, window) for length in layout.lengths)
    mixed = [oracles.masked_attention(*(part[None] for part in text), mask, 2)[0] for text, mask in zip(texts, masks, strict=True)]
    return torch.cat(mixed).unflatten(-1, (2, 4))


def padded(query, key, value, layout, window):
    """The form that CUDA takes, on a CPU."""
    attended = layout.padding.key_mask
    allowed = causal_mask(attended.shape[1], window) & attended[:, None]
    return padded_sdpa(query, key, value, layout, additive_mask(allowed[:, None], query.dtype))


@pytest.mark.parametrize("form", [causal_attention, padded])
@pytest.mark.parametrize("window", [-1, 1, 3])
def test_values_and_gradients_are_those_of_the_plain_form(form, window):
    layout, factors = PackedLayout(LENGTHS, torch.tensor([0, *LENGTHS]).cumsum(0)), torch.randn(sum(LENGTHS), 2, 4)
    inputs = [torch.randn(sum(LENGTHS), 2, 4) for _ in range(3)]
    results = []
    for compute in (plain, form):
        leaves = [part.clone().requires_grad_() for part in inputs]
        output = compute(*leaves, layout, window)
        (output * factors).sum().backward()
        results.append([output.detach(), *(leaf.grad for leaf in leaves)])
    for expected, value in zip(*results, strict=True):
        torch.testing.assert_close(value, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("window", [-1, 1, 2, 3, 9])
def test_the_window_is_the_first_token_and_the_last_few(window):
    assert torch.equal(causal_mask(7, window), oracles.window_mask(7, window) == 0)
