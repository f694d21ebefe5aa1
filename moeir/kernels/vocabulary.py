"""SPLADE weights: the maximum or the saturated sum of the vocabulary logits over a text's positions, one tile of logits at a time.

For the maximum, only the argmax position of each positive (text, term) pair takes part in the gradient, so only those products are
recomputed: exact values and gradients at the memory of the pairs (maximum first, log after). The sum needs every positive position: of a
trained head few logits are positive, and only their products are recomputed; otherwise the logits are recomputed tile by tile.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from moeir.kernels.attention import PackedLayout
from moeir.kernels.pairs import gather_dot

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


def iterate_block_bounds(lengths: Sequence[int], max_tokens: int, max_padding_ratio: float = math.inf) -> Iterator[tuple[int, int, int, int]]:
    """Split neighbouring texts into blocks of at most `max_tokens` tokens, or one text: (first text, last + 1, first token, last + 1).

    Padded to its longest text, a block has at most `max_padding_ratio` rows per token.

    >>> list(text_blocks([3, 3, 5], 6))
    [(0, 2, 0, 6), (2, 3, 6, 11)]
    >>> list(text_blocks([1, 1, 4], 100, 1.25))
    [(0, 2, 0, 2), (2, 3, 2, 6)]
    """
    text = token = 0
    while text < len(lengths):
        last, end, longest = text + 1, token + lengths[text], lengths[text]
        while last < len(lengths) and (total := end + lengths[last] - token) <= max_tokens:
            widest = max(longest, lengths[last])
            if (last + 1 - text) * widest > max_padding_ratio * total:
                break
            last, end, longest = last + 1, token + total, widest
        if end > token:
            yield text, last, token, end
        text, token = last, end


def iterate_blocks(layout: PackedLayout) -> Iterator[TextBlock]:
    """Blocks of at most TOKENS_AT_ONCE tokens, or of one text; on CUDA padded to the longest text of the block."""
    kind = layout.starts.device.type
    waste = MAX_PADDING_RATIO if kind == "cuda" else math.inf
    for text, last, first, end in iterate_block_bounds(layout.lengths, TOKENS_AT_ONCE[kind], waste):
        yield (_padded_block if kind == "cuda" else _packed_block)(layout, text, layout.lengths[text:last], first, end)


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


def iterate_logit_tiles(block: TextBlock, states: Tensor, words: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Slices of the vocabulary with the logits [n, v] of a block's rows; −∞ for ignored rows. All tiles share one buffer."""
    rows = states.index_select(0, block.rows)
    count = max(1, min(len(words), BYTES_AT_ONCE[rows.device.type] // (rows.element_size() * len(rows))))
    count = -(-count // TERM_ALIGNMENT) * TERM_ALIGNMENT if rows.is_cuda else count
    buffer = rows.new_empty(len(rows) * count)
    for first in range(0, len(words), count):
        terms = slice(first, min(first + count, len(words)))
        part = words[terms]
        width = count if rows.is_cuda else len(part)  # of a row in memory
        logits = torch.mm(rows, part.T, out=buffer[: len(rows) * width].view(len(rows), width)[:, : len(part)])
        yield terms, logits if block.ignored_rows is None else logits.masked_fill_(block.ignored_rows[:, None], float("-inf"))


def cast_factors(states: Tensor, embedding: Tensor) -> tuple[Tensor, Tensor]:
    """Cast both factors to the dtype of products: half precision under autocast."""
    kind = states.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else states.dtype
    return states.to(dtype), embedding.to(dtype)


@torch.no_grad()
def find_max_positions(states: Tensor, layout: PackedLayout, embedding: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Terms with a positive logit at some position of each text, and the position of their maximum.

    states [T, H], embedding [V, H], bias [V] -> texts, terms, positions, each [pairs], ordered by text, then term.
    Tokens of `no_attend_mask` never win. Half precision under autocast. On CUDA the maxima of all texts are stored at once, 6 or 8 bytes
    per term, so that one sync returns how many are positive.
    """
    rows, words = cast_factors(states, embedding)
    if states.is_cuda:
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
    text, term = (part.contiguous() for part in (best.float() > -bias).nonzero(as_tuple=True))
    return text, term, layout.starts.index_select(0, text) + columns[text, term]


def _block_max_positions(logits: Tensor, block: TextBlock, floor: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The texts and terms whose largest logit exceeds the floor [v], and the rows of these maxima: each [pairs]."""
    parts = logits.split(list(block.lengths))
    best = torch.stack([part.amax(0) if len(part) else part.new_full(part.shape[1:], float("-inf")) for part in parts])
    texts, terms = (best.float() > floor).nonzero(as_tuple=True)
    terms_by_text, first, argmax_rows = terms.split(torch.bincount(texts, minlength=len(parts)).tolist()), 0, [terms[:0]]
    for part, text_terms in zip(parts, terms_by_text, strict=True):
        if len(text_terms):  # argmax is slow: only for positive terms
            argmax_rows.append(part.index_select(1, text_terms).max(0).indices + first)
        first += len(part)
    return texts, terms, torch.cat(argmax_rows)


def selected_logits(states: Tensor, embedding: Tensor, bias: Tensor, terms: Tensor, positions: Tensor) -> Tensor:
    """The logits of given (position, term) pairs in float32, with gradient; [pairs]."""
    return gather_dot(states.float(), embedding.float(), positions, terms) + bias.float().index_select(0, terms)
