"""The maximum over a text's positions of every vocabulary term, without keeping [T, V] for the gradient.

Only the winning position of each positive (text, term) pair takes part in the gradient, so only those products are recomputed:
exact values and gradients at the memory of the pairs (notes in performance of learned sparse heads: maximum first, log after).
"""

from typing import Any

import torch
from torch import Tensor

from moeir.kernels.attention import Layout

TOKENS_AT_ONCE = 2048  # [2048, 30522] in float32 is 250 MB
PAIRS_AT_ONCE = 2048  # [2048, 768] in float32 is 6 MB: stays near the processor


@torch.no_grad()
def winners(states: Tensor, layout: Layout, embedding: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Which terms are positive somewhere in each text, and where they are strongest.

    states [T, H], embedding [V, H], bias [V] -> texts, terms, positions, each [pairs], ordered by text, then term.
    Silent tokens never win. Half precision if the caller runs under autocast.
    """
    texts, terms, positions = [], [], []
    number = 0
    for first, count, length in layout.groups(TOKENS_AT_ONCE):
        last = first + count * length
        logits = torch.nn.functional.linear(states[first:last], embedding)
        if layout.silent is not None:
            logits = logits.masked_fill(layout.silent[first:last, None], float("-inf"))
        best, place = logits.view(count, length, -1).max(dim=1)  # [n, V]
        text, term = (best.float() + bias > 0).nonzero(as_tuple=True)
        texts.append(text + number)
        terms.append(term)
        positions.append(first + text * length + place[text, term])
        number += count
    return torch.cat(texts), torch.cat(terms), torch.cat(positions)


def activations(states: Tensor, embedding: Tensor, bias: Tensor, terms: Tensor, positions: Tensor) -> Tensor:
    """The logits of chosen (position, term) pairs in float32, with gradient; [pairs]."""
    products: Tensor = _Chosen.apply(states.float(), embedding.float(), terms, positions)
    return products + bias.float().index_select(0, terms)


class _Chosen(torch.autograd.Function):
    """Inner products of chosen rows, a few pairs at a time in both directions: [pairs, H] is never kept."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, embedding: Tensor, terms: Tensor, positions: Tensor) -> Tensor:
        ctx.save_for_backward(states, embedding, terms, positions)
        parts = zip(positions.split(PAIRS_AT_ONCE), terms.split(PAIRS_AT_ONCE), strict=True)
        return torch.cat([(states.index_select(0, place) * embedding.index_select(0, term)).sum(-1) for place, term in parts])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        states, embedding, terms, positions = ctx.saved_tensors
        for_states, for_embedding = torch.zeros_like(states), torch.zeros_like(embedding)
        parts = (column.split(PAIRS_AT_ONCE) for column in (positions, terms, gradients[0][:, None]))
        for place, term, weight in zip(*parts, strict=True):
            for_states.index_add_(0, place, weight * embedding.index_select(0, term))
            for_embedding.index_add_(0, term, weight * states.index_select(0, place))
        return for_states, for_embedding, None, None
