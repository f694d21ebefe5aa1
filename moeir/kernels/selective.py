"""Attention over packed texts in which the caller says, pair by pair, which token looks at which: what decoders need."""

from collections.abc import Callable

import torch
from torch import Tensor

from moeir.kernels.attention import Layout, dotted, together
from moeir.kernels.noise import Forgetting

Seen = Callable[[Tensor, int], Tensor]


def selective(query: Tensor, key: Tensor, value: Tensor, layout: Layout, seen: Seen, forgetting: Forgetting | None = None) -> Tensor:
    """Scaled dot-product attention within each text, of token i to the tokens j that `seen` allows it.

    query, key, value [T, heads, width] -> [T, heads, width]. `seen(texts [n], L)` gives bool [n or 1, L, L] for those texts, padded to
    L tokens; every token must see the first of its text. Groups of neighbouring texts of one length on a CPU, one padded batch on CUDA.
    """
    if query.is_cuda:
        return _padded(query, key, value, layout, seen, forgetting)
    places, looked, number = layout.groups(), [], 0
    for _, count, length in places:
        looked.append(seen(torch.arange(number, number + count), length)[:, None])  # [n or 1, 1, L, L]
        number += count
    return together(query, key, value, places, looked, forgetting)


def _padded(query: Tensor, key: Tensor, value: Tensor, layout: Layout, seen: Seen, forgetting: Forgetting | None) -> Tensor:
    rows, real = layout.padded()  # [B, L]
    q, k, v = (part.index_select(0, rows.flatten()).unflatten(0, rows.shape).transpose(1, 2) for part in (query, key, value))
    looked = seen(torch.arange(len(rows), device=rows.device), rows.shape[1]) & real[:, None]  # [B, L, L]
    mixed = dotted(q, k, v, looked[:, None], forgetting, None if forgetting is None else forgetting.keys[rows])
    return mixed.transpose(1, 2).flatten(0, 1).index_select(0, real.flatten().nonzero()[:, 0])


def causal(window: int) -> Seen:
    """Token i looks at token 0 and at the last `window` tokens, itself included; with -1 at all tokens up to itself.

    >>> causal(2)(torch.arange(1), 4).int()[0]
    tensor([[1, 0, 0, 0],
            [1, 1, 0, 0],
            [1, 1, 1, 0],
            [1, 0, 1, 1]], dtype=torch.int32)
    """

    def seen(texts: Tensor, length: int) -> Tensor:
        places = torch.arange(length, device=texts.device)
        behind = places[:, None] - places  # how far j lies before i
        near = (behind >= 0) if window < 0 else (behind >= 0) & (behind < window)
        return (near | (places == 0))[None]

    return seen
