"""SPLADE weights: the maximum of the vocabulary logits over a text, one tile of logits at a time.

The maximum has a gradient at one position for each positive (text, term) pair, and only the products of these positions are computed
again: values and gradients are exact, and memory grows with the number of pairs.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

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


def iterate_blocks(layout: PackedLayout) -> Iterator[TextBlock]:
    """Blocks of at most TOKENS_AT_ONCE tokens, or of one text; on CUDA padded to the longest text of the block."""
    kind, starts = layout.starts.device.type, [0, *accumulate(layout.lengths)]
    make_block, max_padding_ratio = (_padded_block, MAX_PADDING_RATIO) if kind == "cuda" else (_packed_block, math.inf)
    for text, last in split_by_tokens(layout.lengths, TOKENS_AT_ONCE[kind], max_padding_ratio):
        if starts[text] < starts[last]:
            yield make_block(layout, text, layout.lengths[text:last], starts[text], starts[last])


def _packed_block(layout: PackedLayout, text: int, lengths: tuple[int, ...], first: int, last: int) -> TextBlock:
    ignored_rows = None if layout.no_attend_mask is None else layout.no_attend_mask[first:last]
    return TextBlock(text, lengths, torch.arange(first, last, device=layout.starts.device), ignored_rows)


def _padded_block(layout: PackedLayout, text: int, lengths: tuple[int, ...], first: int, last: int) -> TextBlock:
    longest, starts = max(lengths), layout.starts[text : text + len(lengths) + 1]
    rows = torch.arange(longest, device=starts.device) + starts[:-1, None]  # [n, L]
    ignored_rows = rows >= starts[1:, None]
    rows = rows.clamp(max=last - 1)
    ignored_rows = (ignored_rows if layout.no_attend_mask is None else ignored_rows | layout.no_attend_mask[rows]).flatten()
    return TextBlock(text, (longest,) * len(lengths), rows.flatten(), ignored_rows)


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
