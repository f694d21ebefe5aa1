"""Attention over packed texts in which the caller says, pair by pair, which token attends to which: what decoders need."""

from collections.abc import Callable

import torch
from torch import Tensor

from moeir.kernels.attention import Layout, additive, grouped_sdpa, padded_sdpa

Seen = Callable[[Tensor, int], Tensor]


def selective(query: Tensor, key: Tensor, value: Tensor, layout: Layout, seen: Seen, dropout: float = 0.0) -> Tensor:
    """Scaled dot-product attention within each text, of token i to the tokens j that `seen` allows it.

    query, key, value [T, heads, width] -> [T, heads, width]. `seen(texts [n], L)` gives bool [n or 1, L, L] for those texts, padded to
    L tokens; every token must see the first of its text. Groups of neighbouring texts of one length on a CPU, one padded batch on CUDA.
    """
    if query.is_cuda:
        attended = layout.padding.attended
        texts = torch.arange(len(attended), device=query.device)
        allowed = (seen(texts, attended.shape[1]) & attended[:, None])[:, None]  # [B, 1, L, L]
        return padded_sdpa(query, key, value, layout, additive(allowed, query.dtype), dropout)
    masks, number = [], 0
    for _, count, length in layout.equal_length_groups:
        masks.append(seen(torch.arange(number, number + count), length)[:, None])  # [n or 1, 1, L, L]
        number += count
    return grouped_sdpa(query, key, value, layout, masks, dropout)


def causal(window: int) -> Seen:
    """Token i attends to token 0 and to the last `window` tokens, itself included; with -1 to all tokens up to itself.

    >>> causal(2)(torch.arange(1), 4).int()[0]
    tensor([[1, 0, 0, 0],
            [1, 1, 0, 0],
            [1, 1, 1, 0],
            [1, 0, 1, 1]], dtype=torch.int32)
    """

    def seen(texts: Tensor, length: int) -> Tensor:
        positions = torch.arange(length, device=texts.device)
        distance = positions[:, None] - positions  # how far j lies before i
        near = (distance >= 0) if window < 0 else (distance >= 0) & (distance < window)
        return (near | (positions == 0))[None]

    return seen
