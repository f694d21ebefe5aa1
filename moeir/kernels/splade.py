"""SPLADE weights: the maximum, or the sum Σ log(1 + relu(logit)), of the vocabulary logits over a text, one tile of logits at a time.

The maximum has a gradient at one position for each positive (text, term) pair, and only the products of these positions are computed
again: values and gradients are exact, and memory grows with the number of pairs. The logarithm is taken of the maximum. The sum needs
every positive position. A trained head has few positive logits: their positions are stored, and only their products are recomputed. An
untrained, dense head has many: its logits are recomputed for the gradient, tile by tile.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from moeir.kernels.attention import PackedLayout
from moeir.kernels.gathered_products import gather_dot
from moeir.kernels.int8_linear import Int8Words
from moeir.kernels.precision import product_dtype
from moeir.kernels.token_budget import split_by_tokens

TOKENS_AT_ONCE = {"cpu": 512, "cuda": 1 << 14}
MAX_PADDING_RATIO = 1.25  # most rows of a padded block per token
TERM_ALIGNMENT = 64  # terms: CUDA's matrix products are fastest if rows of logits start at a multiple of this
BYTES_AT_ONCE = {"cpu": 1 << 21, "cuda": 1 << 27}  # of logits; on a CPU what fits the cache of a core


@dataclass(frozen=True)
class TextBlock:
    """Neighbouring texts from index `first_text` on. `rows` [n]: their tokens; `ignored_rows` [n] marks rows that never win (None: none).

    `lengths` are the numbers of rows of the texts; in a padded block all are equal, with ignored rows after a text's tokens.
    """

    first_text: int
    lengths: tuple[int, ...]
    rows: Tensor
    ignored_rows: Tensor | None
    padded: bool


def iterate_blocks(layout: PackedLayout) -> Iterator[TextBlock]:
    """Blocks of at most TOKENS_AT_ONCE tokens, or of one text; on CUDA padded to the longest text of the block."""
    kind, starts = layout.starts.device.type, [0, *accumulate(layout.lengths)]
    make_block, max_padding_ratio = (_padded_block, MAX_PADDING_RATIO) if kind == "cuda" else (_packed_block, math.inf)
    for text, last in split_by_tokens(layout.lengths, TOKENS_AT_ONCE[kind], max_padding_ratio):
        if starts[text] < starts[last]:
            yield make_block(layout, text, layout.lengths[text:last], starts[text], starts[last])


def _packed_block(layout: PackedLayout, text: int, lengths: tuple[int, ...], first: int, last: int) -> TextBlock:
    ignored_rows = None if layout.no_attend_mask is None else layout.no_attend_mask[first:last]
    return TextBlock(text, lengths, torch.arange(first, last, device=layout.starts.device), ignored_rows, False)


def _padded_block(layout: PackedLayout, text: int, lengths: tuple[int, ...], first: int, last: int) -> TextBlock:
    longest, starts = max(lengths), layout.starts[text : text + len(lengths) + 1]
    rows = torch.arange(longest, device=starts.device) + starts[:-1, None]  # [n, L]
    ignored_rows = rows >= starts[1:, None]
    rows = rows.clamp(max=last - 1)
    ignored_rows = (ignored_rows if layout.no_attend_mask is None else ignored_rows | layout.no_attend_mask[rows]).flatten()
    return TextBlock(text, (longest,) * len(lengths), rows.flatten(), ignored_rows, True)


def iterate_logit_tiles(block: TextBlock, states: Tensor, words: Tensor | Int8Words) -> Iterator[tuple[slice, Tensor]]:
    """Slices of the vocabulary with the logits [n, v] of a block's rows, valid until the next; −∞ for ignored rows."""
    rows = states.index_select(0, block.rows)
    for terms, logits in words.iterate_logits(rows) if isinstance(words, Int8Words) else _iterate_logits(rows, words):
        yield terms, logits if block.ignored_rows is None else logits.masked_fill_(block.ignored_rows[:, None], float("-inf"))


def _iterate_logits(rows: Tensor, words: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Slices of the vocabulary with the logits [n, v] of rows [n, H]; all share one buffer."""
    count = max(1, min(len(words), BYTES_AT_ONCE[rows.device.type] // (rows.element_size() * len(rows))))
    count = -(-count // TERM_ALIGNMENT) * TERM_ALIGNMENT if rows.is_cuda else count
    buffer = rows.new_empty(len(rows) * count)
    for first in range(0, len(words), count):
        terms = slice(first, min(first + count, len(words)))
        part = words[terms]
        width = count if rows.is_cuda else len(part)  # of a row in memory
        logits = buffer[: len(rows) * width].view(len(rows), width)[:, : len(part)]
        yield terms, torch.mm(rows, part.T, out=logits)


@torch.no_grad()
def find_max_positions(states: Tensor, layout: PackedLayout, embedding: Tensor | Int8Words, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Terms with a positive logit, or NaN, at some position of each text, and the position of their maximum.

    states [T, H], embedding [V, H], bias [V] -> texts, terms, positions, each [pairs], ordered by text, then term.
    Tokens of `no_attend_mask` never win. Half precision under autocast. On CUDA the maxima of all texts are stored at once, 6 or 8 bytes
    per term, so that one sync returns how many are positive.
    """
    dtype = product_dtype(states)
    rows, words = states.to(dtype), embedding.to(dtype) if isinstance(embedding, Tensor) else embedding
    if states.is_cuda:
        assert isinstance(words, Tensor)
        return _max_positions_cuda(rows, layout, words, bias)
    matches = [torch.zeros(2, 0, dtype=torch.int64)]
    for block in iterate_blocks(layout):
        for part, logits in iterate_logit_tiles(block, rows, words):
            texts, terms, block_rows = _block_max_positions(logits, block, -bias[part])
            matches.append(torch.stack([(texts + block.first_text) * len(words) + terms + part.start, block.rows[block_rows]]))
    pairs, order = torch.cat([part[0] for part in matches]).sort()
    positions = torch.cat([part[1] for part in matches])[order]
    return pairs // len(words), pairs % len(words), positions


def _max_positions_cuda(rows: Tensor, layout: PackedLayout, words: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For CUDA: the largest logit of every text and term and its column in the padded block, then those that are positive."""
    texts = len(layout.lengths)
    best = rows.new_full((texts, len(words)), float("-inf"))
    columns = torch.zeros(best.shape, dtype=torch.int32, device=best.device)
    for block in iterate_blocks(layout):
        block_texts = slice(block.first_text, block.first_text + len(block.lengths))
        for part, logits in iterate_logit_tiles(block, rows, words):
            values, column = logits.view(len(block.lengths), block.lengths[0], -1).max(1)  # [n, v]
            best[block_texts, part], columns[block_texts, part] = values, column
    text, term = (part.contiguous() for part in (~(best.float() <= -bias)).nonzero(as_tuple=True))
    return text, term, layout.starts.index_select(0, text) + columns[text, term]


def _block_max_positions(logits: Tensor, block: TextBlock, floor: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The texts and terms whose largest logit exceeds the floor [v] or is NaN, and the rows of these maxima: each [pairs]."""
    parts = logits.split(list(block.lengths))
    best = torch.stack([part.amax(0) if len(part) else part.new_full(part.shape[1:], float("-inf")) for part in parts])
    texts, terms = (~(best.float() <= floor)).nonzero(as_tuple=True)
    terms_by_text, first, argmax_rows = terms.split(torch.bincount(texts, minlength=len(parts)).tolist()), 0, [terms[:0]]
    for part, text_terms in zip(parts, terms_by_text, strict=True):
        if len(text_terms):  # argmax is slow: only for positive terms
            argmax_rows.append(part.index_select(1, text_terms).max(0).indices + first)
        first += len(part)
    return texts, terms, torch.cat(argmax_rows)


def selected_logits(states: Tensor, embedding: Tensor, bias: Tensor, terms: Tensor, positions: Tensor) -> Tensor:
    """The logits of given (position, term) pairs in float32, with gradient; [pairs]."""
    return gather_dot(states.float(), embedding.float(), positions, terms) + bias.float().index_select(0, terms)


MAX_POSITIVE_SHARE = 1 / 64  # share of positive logits up to which stored positions are cheaper than recomputed logits


def log_saturated_sum(states: Tensor, layout: PackedLayout, embedding: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Σ over a text's positions of log(1 + relu(logit)), if positive, in float32 with gradient.

    states [T, H], embedding [V, H], bias [V] -> texts, terms, weights, each [pairs], ordered by text, then term. Tokens of
    `no_attend_mask` count nothing. Under autocast the factors of the products, and nothing else, are in half precision.
    """
    dtype = product_dtype(states)
    with torch.autocast(states.device.type, enabled=False):
        positive = None if states.is_cuda else _positive_logits(states.to(dtype), layout, embedding.to(dtype), bias)
        if positive is None:
            texts, terms, weights = _LogSaturatedSum.apply(states, embedding, bias, layout, dtype)
            return texts, terms, weights
        positions, terms = positive
        logits = selected_logits(states, embedding, bias, terms, positions)
    still_positive = (~(logits <= 0)).nonzero()[:, 0]  # drop logits that were positive only by rounding
    pair_texts = layout.text_indices[positions[still_positive]]
    pairs, pair_index = torch.unique(pair_texts * len(embedding) + terms[still_positive], return_inverse=True)
    weights = logits.new_zeros(len(pairs)).index_add(0, pair_index, torch.log1p(logits[still_positive]))
    return pairs // len(embedding), pairs % len(embedding), weights


@torch.no_grad()
def _positive_logits(states: Tensor, layout: PackedLayout, words: Tensor, bias: Tensor) -> tuple[Tensor, Tensor] | None:
    """Positions and terms of all positive logits, each [n]; None as soon as there are too many."""
    positions, terms = [bias.new_zeros(0, dtype=torch.int64)], [bias.new_zeros(0, dtype=torch.int64)]
    for block in iterate_blocks(layout):
        for part, logits in iterate_logit_tiles(block, states, words):
            row, term = (~(logits <= -bias[part])).nonzero(as_tuple=True)
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
        states, embedding, bias, texts, terms = ctx.saved_tensors
        rows, words = states.to(ctx.dtype), embedding.to(ctx.dtype)
        parts = [torch.zeros_like(part, dtype=torch.float32) for part in (states, embedding, bias)]
        weight_gradient = gradients[2].new_zeros(len(ctx.layout.lengths), len(words))
        weight_gradient[texts, terms] = gradients[2]
        with torch.autocast(states.device.type, enabled=False):
            for block in iterate_blocks(ctx.layout):
                block_gradient = weight_gradient[block.first_text : block.first_text + len(block.lengths)]
                block_states = rows.index_select(0, block.rows)
                for part, logits in iterate_logit_tiles(block, rows, words):
                    values = torch.add(logits, bias[part])
                    logit_gradient = _expand_to_rows(block_gradient[:, part], block).mul_(values > 0)  # [n, v]
                    logit_gradient = logit_gradient.div_(values.clamp_(min=0).add_(1))
                    parts[2][part] += logit_gradient.sum(0)
                    logit_gradient = logit_gradient.to(ctx.dtype)
                    parts[0].index_add_(0, block.rows, (logit_gradient @ words[part]).float())
                    parts[1][part] += logit_gradient.T @ block_states
        return *(part.to(own.dtype) for part, own in zip(parts, (states, embedding, bias), strict=True)), None, None


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
