"""SPLADE's sum pooling: Σ over a text's positions of log(1 + relu(logit)) for every term, one tile of logits at a time.

A trained head has few positive logits: their positions are stored, and only their products are recomputed with a gradient. An untrained,
dense head has many: its logits are recomputed for the gradient, tile by tile.
"""

from typing import Any

import torch
from torch import Tensor

from moeir.kernels.attention import PackedLayout
from moeir.kernels.vocabulary import TextBlock, selected_logits, iterate_blocks, cast_factors, iterate_logit_tiles

MAX_POSITIVE_SHARE = 1 / 64  # share of positive logits up to which stored positions are cheaper than recomputed logits


def log_saturated_sum(states: Tensor, layout: PackedLayout, embedding: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Σ over a text's positions of log(1 + relu(logit)), if positive, in float32 with gradient.

    states [T, H], embedding [V, H], bias [V] -> texts, terms, weights, each [pairs], ordered by text, then term. Tokens of
    `no_attend_mask` count nothing. Under autocast the factors of the products, and nothing else, are in half precision.
    """
    rows, words = cast_factors(states.detach(), embedding.detach())
    with torch.autocast(states.device.type, enabled=False):
        positive = None if states.is_cuda else _positive_logits(rows, layout, words, bias.detach())
        if positive is None:
            texts, terms, weights = _LogSaturatedSum.apply(states, embedding, bias, layout, rows.dtype)
            return texts, terms, weights
        logits = selected_logits(states, embedding, bias, positive[1], positive[0])
    still_positive = (logits > 0).nonzero()[:, 0]  # drop logits that were positive only by rounding
    pair_texts = layout.text_indices[positive[0][still_positive]]
    pairs, pair_index = torch.unique(pair_texts * len(embedding) + positive[1][still_positive], return_inverse=True)
    weights = logits.new_zeros(len(pairs)).index_add(0, pair_index, torch.log1p(logits[still_positive]))
    return pairs // len(embedding), pairs % len(embedding), weights


@torch.no_grad()
def _positive_logits(states: Tensor, layout: PackedLayout, words: Tensor, bias: Tensor) -> tuple[Tensor, Tensor] | None:
    """Positions and terms of all positive logits, each [n]; None as soon as there are too many."""
    positions, terms = [bias.new_zeros(0, dtype=torch.int64)], [bias.new_zeros(0, dtype=torch.int64)]
    for block in iterate_blocks(layout):
        for part, logits in iterate_logit_tiles(block, states, words):
            row, term = (logits > -bias[part]).nonzero(as_tuple=True)
            if len(row) > MAX_POSITIVE_SHARE * logits.numel():
                return None
            positions.append(block.rows[row])
            terms.append(term + part.start)
    return torch.cat(positions), torch.cat(terms)


class _LogSaturatedSum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, states: Tensor, embedding: Tensor, bias: Tensor, layout: PackedLayout, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor, Tensor]:
        rows, words = states.to(dtype), embedding.to(dtype)
        sums = torch.zeros(len(layout.lengths), len(words), device=states.device)
        for block in iterate_blocks(layout):
            block_sums = sums[block.first_text : block.first_text + len(block.lengths)]
            for part, logits in iterate_logit_tiles(block, rows, words):
                block_sums[:, part] = _sum_by_text(torch.add(logits, bias[part]).relu_().log1p_(), block)
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
    states: Tensor, embedding: Tensor, bias: Tensor, texts: Tensor, terms: Tensor, gradient: Tensor, layout: PackedLayout, dtype: torch.dtype
) -> list[Tensor]:
    """Gradients of states, embedding and bias, from recomputed logits."""
    rows, words = states.to(dtype), embedding.to(dtype)
    gradients = [torch.zeros_like(part, dtype=torch.float32) for part in (states, embedding, bias)]
    weight_gradient = gradient.new_zeros(len(layout.lengths), len(words))
    weight_gradient[texts, terms] = gradient
    for block in iterate_blocks(layout):
        block_gradient = weight_gradient[block.first_text : block.first_text + len(block.lengths)]
        block_states = rows.index_select(0, block.rows)
        for part, logits in iterate_logit_tiles(block, rows, words):
            values = torch.add(logits, bias[part])
            logit_gradient = _expand_to_rows(block_gradient[:, part], block).mul_(values > 0).div_(values.clamp_(min=0).add_(1))  # [n, v]
            gradients[2][part] += logit_gradient.sum(0)
            logit_gradient = logit_gradient.to(dtype)
            gradients[0].index_add_(0, block.rows, (logit_gradient @ words[part]).float())
            gradients[1][part] += logit_gradient.T @ block_states
    return [part.to(parameter.dtype) for part, parameter in zip(gradients, (states, embedding, bias), strict=True)]


def _sum_by_text(weights: Tensor, block: TextBlock) -> Tensor:
    """Weights [n, v] of a block's rows summed by text: [texts, v]."""
    if block.padded:
        return weights.view(len(block.lengths), block.lengths[0], -1).sum(1)
    return torch.stack([text_weights.sum(0) for text_weights in weights.split(list(block.lengths))])


def _expand_to_rows(values: Tensor, block: TextBlock) -> Tensor:
    """Values [texts, v] repeated for each row of a text: [n, v]."""
    if block.padded:
        return values[:, None].expand(-1, block.lengths[0], -1).flatten(0, 1).clone()
    return torch.repeat_interleave(values, torch.tensor(block.lengths), 0, output_size=len(block.rows))
