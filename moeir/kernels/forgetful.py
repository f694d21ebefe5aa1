"""Attention whose weights are dropped by each token's own numbers: the same in any batch, on any process, at any recomputation."""

from typing import Any

import torch
from torch import Tensor

from moeir.kernels.noise import kept, scale

HEADS_APART = -0x5851F42D4C957F2D  # odd: every head of a token has a number of its own


def forgetful(query: Tensor, key: Tensor, value: Tensor, seen: Tensor | None, keys: Tensor, rate: float, site: int) -> Tensor:
    """softmax(Q Kᵀ / √width) V, weights dropped after the softmax (Vaswani et al. 2017).

    query, key, value [n, heads, L, width], keys [n, L] of the tokens that look -> [n, heads, L, width]. `seen` says what each token
    looks at, to be broadcast to [n, heads, L, L]; every token must see one. Weights and what stays of them are kept for the gradient.
    """
    return _Forgetful.apply(query, key, value, seen, keys, rate, site)  # type: ignore[no-any-return]


class _Forgetful(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, seen: Tensor | None, keys: Tensor, rate: float, site: int
    ) -> Tensor:
        shrink = query.shape[-1] ** -0.5
        scores = (query * shrink) @ key.mT  # [n, heads, L, L]
        if seen is not None:
            scores = scores.masked_fill_(~seen, float("-inf"))
        weights = scores.softmax(-1)
        heads, length = scores.shape[1:3]
        own = keys[:, None] + torch.arange(heads, device=keys.device)[:, None] * HEADS_APART  # [n, heads, L]
        stay = kept(own, length, rate, site)
        ctx.save_for_backward(query, key, value, weights, stay)
        ctx.scale, ctx.shrink = scale(rate), shrink
        return torch.where(stay, weights * ctx.scale, 0) @ value

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, weights, stay = ctx.saved_tensors
        given = gradients[0]
        for_value = torch.where(stay, weights * ctx.scale, 0).mT @ given
        for_weights = torch.where(stay, (given @ value.mT).mul_(ctx.scale), 0)
        for_scores = torch._softmax_backward_data(for_weights, weights, -1, weights.dtype).mul_(ctx.shrink)
        return for_scores @ key, for_scores.mT @ query, for_value, None, None, None, None
