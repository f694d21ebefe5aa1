"""The sum over a text's positions of log(1 + relu(logit)) for every term, never with more of the logits than a tile.

Of a trained head few logits are positive: their places are kept, and only their products are computed again with a gradient. Where many
are, as of a head that has not learned to be silent, the logits are computed again for the gradient, tile by tile.
"""

from typing import Any

import torch
from torch import Tensor

from moeir.kernels.attention import Layout
from moeir.kernels.vocabulary import Block, activations, blocks, factors, tiles

FEW = 1 / 64  # share of positive logits up to which places are cheaper than logits computed again


def saturated_sums(states: Tensor, layout: Layout, embedding: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Σ over a text's positions of log(1 + relu(logit)), where that is positive, in float32 with gradient.

    states [T, H], embedding [V, H], bias [V] -> texts, terms, weights, each [pairs], ordered by text, then term. Silent tokens count
    nothing. Under autocast the products, and only they, are of half-precision factors.
    """
    rows, words = factors(states.detach(), embedding.detach())
    with torch.autocast(states.device.type, enabled=False):
        places = None if states.is_cuda else _positive(rows, layout, words, bias.detach())
        if places is None:
            texts, terms, weights = _SaturatedSum.apply(states, embedding, bias, layout, rows.dtype)
            return texts, terms, weights
        logits = activations(states, embedding, bias, places[1], places[0])
    kept = (logits > 0).nonzero()[:, 0]  # what was positive by rounding only is absent
    owners = layout.owners[places[0][kept]]
    pairs, members = torch.unique(owners * len(embedding) + places[1][kept], return_inverse=True)
    weights = logits.new_zeros(len(pairs)).index_add(0, members, torch.log1p(logits[kept]))
    return pairs // len(embedding), pairs % len(embedding), weights


@torch.no_grad()
def _positive(states: Tensor, layout: Layout, words: Tensor, bias: Tensor) -> tuple[Tensor, Tensor] | None:
    """Positions and terms of all positive logits, each [n]; None as soon as there are too many."""
    positions, terms = [bias.new_zeros(0, dtype=torch.int64)], [bias.new_zeros(0, dtype=torch.int64)]
    for block in blocks(layout):
        for part, logits in tiles(block, states, words):
            row, term = (logits > -bias[part]).nonzero(as_tuple=True)
            if len(row) > FEW * logits.numel():
                return None
            positions.append(block.rows[row])
            terms.append(term + part.start)
    return torch.cat(positions), torch.cat(terms)


class _SaturatedSum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, states: Tensor, embedding: Tensor, bias: Tensor, layout: Layout, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor, Tensor]:
        rows, words = states.to(dtype), embedding.to(dtype)
        sums = torch.zeros(len(layout.lengths), len(words), device=states.device)
        for block in blocks(layout):
            own = sums[block.text : block.text + len(block.lengths)]
            for part, logits in tiles(block, rows, words):
                own[:, part] = _added(torch.add(logits, bias[part]).relu_().log1p_(), block)
        texts, terms = sums.nonzero(as_tuple=True)
        weights = sums[texts, terms]
        ctx.save_for_backward(states, embedding, bias, texts, terms)
        ctx.layout, ctx.dtype = layout, dtype
        ctx.mark_non_differentiable(texts, terms)
        return texts, terms, weights

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        with torch.autocast(gradients[2].device.type, enabled=False):
            return *_gradients(*ctx.saved_tensors, gradients[2], ctx.layout, ctx.dtype), None, None


def _gradients(
    states: Tensor, embedding: Tensor, bias: Tensor, texts: Tensor, terms: Tensor, gradient: Tensor, layout: Layout, dtype: torch.dtype
) -> list[Tensor]:
    """Of states, embedding and bias, from the logits computed again."""
    rows, words = states.to(dtype), embedding.to(dtype)
    found = [torch.zeros_like(part, dtype=torch.float32) for part in (states, embedding, bias)]
    wanted = gradient.new_zeros(len(layout.lengths), len(words))
    wanted[texts, terms] = gradient
    for block in blocks(layout):
        asked = wanted[block.text : block.text + len(block.lengths)]
        own = rows.index_select(0, block.rows)
        for part, logits in tiles(block, rows, words):
            known = torch.add(logits, bias[part])
            slopes = _spread(asked[:, part], block).mul_(known > 0).div_(known.clamp_(min=0).add_(1))  # [n, v]
            found[2][part] += slopes.sum(0)
            slopes = slopes.to(dtype)
            found[0].index_add_(0, block.rows, (slopes @ words[part]).float())
            found[1][part] += slopes.T @ own
    return [part.to(given.dtype) for part, given in zip(found, (states, embedding, bias), strict=True)]


def _added(weights: Tensor, block: Block) -> Tensor:
    """Weights [n, v] of a block's rows added up by text: [texts, v]."""
    if block.padded:
        return weights.view(len(block.lengths), block.lengths[0], -1).sum(1)
    return torch.stack([own.sum(0) for own in weights.split(list(block.lengths))])


def _spread(values: Tensor, block: Block) -> Tensor:
    """Values [texts, v] once for each of a text's rows: [n, v]."""
    if block.padded:
        return values[:, None].expand(-1, block.lengths[0], -1).flatten(0, 1).clone()
    return torch.repeat_interleave(values, torch.tensor(block.lengths), 0, output_size=len(block.rows))
