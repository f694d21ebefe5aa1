"""Attention over packed texts: no text sees another, and padding exists at most inside this file."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """Where the texts of a batch lie among its packed tokens, worked out once for all layers.

    `lengths` (host) are in the order of the tokens; `silent` [T] marks tokens that look but are not looked at.
    """

    lengths: tuple[int, ...]
    starts: Tensor
    silent: Tensor | None = None

    def groups(self, most: float = math.inf) -> list[tuple[int, int, int]]:
        """Runs of neighbouring texts of one length: (first token, texts, length); of at most `most` tokens, or of one text."""
        found: list[tuple[int, int, int]] = []
        place = 0
        for length in self.lengths:
            if found and found[-1][2] == length and (found[-1][1] + 1) * length <= most:
                first, texts, _ = found[-1]
                found[-1] = (first, texts + 1, length)
            else:
                found.append((place, 1, length))
            place += length
        return found


def attention(query: Tensor, key: Tensor, value: Tensor, layout: Layout, dropout: float = 0.0) -> Tensor:
    """Scaled dot-product attention within each text.

    query, key, value [T, heads, width] -> [T, heads, width]. On CUDA in half precision without dropout, for widths its kernels know:
    variable-length attention. Elsewhere: groups of neighbouring texts of one length on a CPU, one masked batch on CUDA. The formula is
    the same.
    """
    if query.is_cuda and dropout == 0.0 and query.dtype in (torch.float16, torch.bfloat16) and query.shape[-1] % 8 == 0:
        return _varlen(query, key, value, layout)
    if query.is_cuda:
        return _masked(query, key, value, layout, dropout)
    parts = [_group(query, key, value, layout, place, dropout) for place in layout.groups()]
    return torch.cat(parts)


def _group(query: Tensor, key: Tensor, value: Tensor, layout: Layout, place: tuple[int, int, int], dropout: float) -> Tensor:
    first, texts, length = place
    last = first + texts * length
    q, k, v = (part[first:last].unflatten(0, (texts, length)).transpose(1, 2) for part in (query, key, value))  # [n, heads, L, width]
    seen = None if layout.silent is None else ~layout.silent[first:last].view(texts, 1, 1, length)
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, dropout_p=dropout)
    return mixed.transpose(1, 2).flatten(0, 1)  # [n * L, heads, width]


def _masked(query: Tensor, key: Tensor, value: Tensor, layout: Layout, dropout: float) -> Tensor:
    longest = max(layout.lengths, default=0)
    steps = torch.arange(longest, device=query.device)
    rows = layout.starts[:-1, None] + steps  # [B, L]
    real = rows < layout.starts[1:, None]
    rows = torch.where(real, rows, 0)
    seen = real if layout.silent is None else real & ~layout.silent[rows]
    q, k, v = (part.index_select(0, rows.flatten()).unflatten(0, rows.shape).transpose(1, 2) for part in (query, key, value))
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=seen[:, None, None], dropout_p=dropout)
    return mixed.transpose(1, 2).flatten(0, 1).index_select(0, real.flatten().nonzero()[:, 0])


def _varlen(query: Tensor, key: Tensor, value: Tensor, layout: Layout) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn  # brings torch's compiler: 1.3 s that only CUDA is worth

    starts, longest = layout.starts.int(), max(layout.lengths, default=0)
    seen_starts = starts
    if layout.silent is not None:
        kept = ~layout.silent
        before = torch.cat([kept.new_zeros(1, dtype=torch.int64), kept.cumsum(0)])
        key, value, seen_starts = key[kept], value[kept], before[layout.starts].int()
    return varlen_attn(query.contiguous(), key.contiguous(), value.contiguous(), starts, seen_starts, longest, longest)
