"""Attention over packed texts with an arbitrary mask of token pairs, as decoders need it."""

from collections.abc import Callable

import torch
from torch import Tensor

from moeir.kernels.attention import PackedLayout, additive_mask, grouped_sdpa, padded_sdpa

VisibilityMask = Callable[[Tensor, int], Tensor]


def masked_attention(query: Tensor, key: Tensor, value: Tensor, layout: PackedLayout, visibility: VisibilityMask, dropout: float = 0.0) -> Tensor:
    """Scaled dot-product attention within each text, of token i to the tokens j that `visibility` allows.

    query, key, value [T, heads, width] -> [T, heads, width]. `visibility(texts [n], L)` returns bool [n or 1, L, L] for those texts, padded
    to L tokens; every token must attend to the first of its text. On a CPU: groups of neighbouring texts of equal length; on CUDA: one
    padded batch.
    """
    if query.is_cuda:
        attended = layout.padding.key_mask
        texts = torch.arange(len(attended), device=query.device)
        allowed = (visibility(texts, attended.shape[1]) & attended[:, None])[:, None]  # [B, 1, L, L]
        return padded_sdpa(query, key, value, layout, additive_mask(allowed, query.dtype), dropout)
    masks, first_text = [], 0
    for _, count, length in layout.equal_length_groups:
        masks.append(visibility(torch.arange(first_text, first_text + count), length)[:, None])  # [n or 1, 1, L, L]
        first_text += count
    return grouped_sdpa(query, key, value, layout, masks, dropout)


def causal_mask(window: int) -> VisibilityMask:
    """Token i attends to token 0 and to the last `window` tokens, itself included; with -1 to all tokens up to itself.

    >>> causal(2)(torch.arange(1), 4).int()[0]
    tensor([[1, 0, 0, 0],
            [1, 1, 0, 0],
            [1, 1, 1, 0],
            [1, 0, 1, 1]], dtype=torch.int32)
    """

    def visibility(texts: Tensor, length: int) -> Tensor:
        positions = torch.arange(length, device=texts.device)
        distance = positions[:, None] - positions  # i − j
        in_window = (distance >= 0) if window < 0 else (distance >= 0) & (distance < window)
        return (in_window | (positions == 0))[None]

    return visibility
