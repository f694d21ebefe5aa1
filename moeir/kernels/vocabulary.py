"""A weight for every vocabulary term from all positions of a text, without keeping [T, V] for the gradient.

Of a maximum, only the winning position of each positive (text, term) pair takes part in the gradient, so only those products are
recomputed: exact values and gradients at the memory of the pairs (notes in performance of learned sparse heads: maximum first, log
after). A sum needs every positive position: its logits are computed a block of texts at a time, and again for the gradient.
"""

from typing import Any

import torch
from torch import Tensor

from moeir.kernels.attention import Layout
from moeir.kernels.pairs import products

TOKENS_AT_ONCE = 2048  # [2048, 30522] in float32 is 250 MB
MANY = 1 / 8  # share of positive terms from which on all places are looked for at once


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
        stacked = logits.view(count, length, -1)
        best = _strongest(stacked)  # [n, V]
        text, term = (best.float() + bias > 0).nonzero(as_tuple=True)
        texts.append(text + number)
        terms.append(term)
        positions.append(first + text * length + _places(stacked, best, text, term))
        number += count
    return torch.cat(texts), torch.cat(terms), torch.cat(positions)


def _strongest(logits: Tensor) -> Tensor:
    """[n, L, V] -> [n, V]. A processor reduces an inner dimension slowly, above all with the places: it goes place by place."""
    if logits.is_cuda:
        return logits.amax(1)
    best = logits[:, 0].clone()
    for place in range(1, logits.shape[1]):
        torch.maximum(best, logits[:, place], out=best)
    return best


def _places(logits: Tensor, best: Tensor, texts: Tensor, terms: Tensor) -> Tensor:
    """Where in its text each pair's best logit first stands: [pairs], for pairs ordered by text."""
    if len(terms) > MANY * best.numel():
        return logits.max(1).indices[texts, terms]
    own = terms.split(torch.bincount(texts, minlength=len(best)).tolist())
    columns = ((part.index_select(1, chosen), row[chosen]) for part, row, chosen in zip(logits, best, own, strict=True))
    return torch.cat([(found == wanted).byte().argmax(0) for found, wanted in columns])


def activations(states: Tensor, embedding: Tensor, bias: Tensor, terms: Tensor, positions: Tensor) -> Tensor:
    """The logits of chosen (position, term) pairs in float32, with gradient; [pairs]."""
    return products(states.float(), embedding.float(), positions, terms) + bias.float().index_select(0, terms)


def saturated_sums(states: Tensor, layout: Layout, embedding: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Σ over a text's positions of log(1 + relu(logit)), where that is positive, in float32 with gradient.

    states [T, H], embedding [V, H], bias [V] -> texts, terms, weights, each [pairs], ordered by text, then term. Silent tokens count
    nothing. The plain form keeps [T, V] several times over.
    """
    with torch.autocast(states.device.type, enabled=False):
        pairs = _SaturatedSum.apply(states.float(), embedding.float(), bias.float(), layout)
    return pairs[0], pairs[1], pairs[2]


class _SaturatedSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, embedding: Tensor, bias: Tensor, layout: Layout) -> tuple[Tensor, Tensor, Tensor]:
        texts, terms, weights = [], [], []
        number = 0
        for first, count, length in layout.groups(TOKENS_AT_ONCE):
            logits = _audible(states, embedding, bias, layout, slice(first, first + count * length))
            sums = logits.relu_().log1p_().view(count, length, -1).sum(1)  # [n, V]
            text, term = sums.nonzero(as_tuple=True)
            texts.append(text + number)
            terms.append(term)
            weights.append(sums[text, term])
            number += count
        found = torch.cat(texts), torch.cat(terms), torch.cat(weights)
        ctx.save_for_backward(states, embedding, bias, *found[:2])
        ctx.layout = layout
        ctx.mark_non_differentiable(*found[:2])
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        states, embedding, bias, texts, terms = ctx.saved_tensors
        for_states, for_embedding, for_bias = torch.zeros_like(states), torch.zeros_like(embedding), torch.zeros_like(bias)
        number = 0
        for first, count, length in ctx.layout.groups(TOKENS_AT_ONCE):
            part = slice(first, first + count * length)
            logits = _audible(states, embedding, bias, ctx.layout, part)
            own = slice(*torch.searchsorted(texts, torch.tensor([number, number + count], device=texts.device)).tolist())
            wanted = logits.new_zeros(count, len(embedding))
            wanted[texts[own] - number, terms[own]] = gradients[2][own]
            slopes = torch.where(logits > 0, wanted.repeat_interleave(length, 0) / (1 + logits.clamp_(min=0)), 0.0)  # [n * L, V]
            for_states[part] = slopes @ embedding
            for_embedding.addmm_(slopes.T, states[part])
            for_bias += slopes.sum(0)
            number += count
        return for_states, for_embedding, for_bias, None


def _audible(states: Tensor, embedding: Tensor, bias: Tensor, layout: Layout, part: slice) -> Tensor:
    """Logits [n, V] of a stretch of tokens; those of silent ones are −∞."""
    logits = torch.nn.functional.linear(states[part], embedding, bias)
    return logits if layout.silent is None else logits.masked_fill_(layout.silent[part, None], float("-inf"))
