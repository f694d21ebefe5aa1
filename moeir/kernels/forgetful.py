"""Attention with a gradient of its own, whose weights may be dropped by each token's own numbers: the same in any batch, on any process.

Packed texts go through it in groups of one length and as one step of the gradient: of a slice for each group, torch would fill and add up
a tensor of all tokens.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from moeir.kernels.noise import Forgetting, kept, scale

HEADS_APART = -0x5851F42D4C957F2D  # odd: every head of a token has a number of its own
Place = tuple[int, int, int]  # of a group: first token, texts, length


def forgetful(query: Tensor, key: Tensor, value: Tensor, seen: Tensor | None, keys: Tensor, rate: float, site: int) -> Tensor:
    """softmax(Q Kᵀ / √width) V, weights dropped after the softmax (Vaswani et al. 2017).

    query, key, value [n, heads, L, width], keys [n, L] of the tokens that look -> [n, heads, L, width]. `seen` says what each token
    looks at, to be broadcast to [n, heads, L, L]; every token must see one. Weights and what stays of them are kept for the gradient.
    """
    texts, length = keys.shape
    flat = (part.transpose(1, 2).flatten(0, 1) for part in (query, key, value))
    mixed = grouped(*flat, [(0, texts, length)], [seen], Forgetting(rate, site, keys.flatten()))
    return mixed.unflatten(0, (texts, length)).transpose(1, 2)


def grouped(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    places: Sequence[Place],
    seen: Sequence[Tensor | None],
    forgetting: Forgetting | None,
    lookers: Sequence[Place] | None = None,
) -> Tensor:
    """The same of packed texts: query, key, value [T, heads, width], keys of `forgetting` [T] -> [T, heads, width].

    `places` are groups of texts of one length, one behind the other; `seen` says of each what its tokens look at. If not all of them look,
    `lookers` are the groups of those that do: query [R, heads, width], keys of `forgetting` [R] -> [R, heads, width].
    """
    mixed: Tensor = _Grouped.apply(query, key, value, places, seen, forgetting, places if lookers is None else lookers)
    return mixed


class _Grouped(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        places: Sequence[Place],
        seen: Sequence[Tensor | None],
        forgetting: Forgetting | None,
        lookers: Sequence[Place],
    ) -> Tensor:
        ctx.places, ctx.lookers, ctx.shrink = places, lookers, query.shape[-1] ** -0.5
        ctx.scale = None if forgetting is None else scale(forgetting.rate)
        query = query * ctx.shrink
        mixed, saved = torch.empty_like(query), []
        for place, looker, heard in zip(places, lookers, seen, strict=True):
            q, k, v = _heads(query, looker), _heads(key, place), _heads(value, place)
            scores = q @ k.mT  # [n * heads, L, L]
            if heard is not None:
                scores.unflatten(0, (place[1], -1)).masked_fill_(~heard, float("-inf"))
            weights = scores.softmax(-1)
            stay = None if forgetting is None else _stay(forgetting, looker, query.shape[1], place[2])
            _write(mixed, looker, _dropped(weights, stay) @ v, ctx.scale)
            saved += [weights] if stay is None else [weights, stay]
        ctx.save_for_backward(query, key, value, *saved)
        return mixed

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, *saved = ctx.saved_tensors
        given = gradients[0] if ctx.scale is None else gradients[0] * ctx.scale
        found, each = [torch.empty_like(part) for part in (query, key, value)], len(saved) // len(ctx.places)
        for number, (place, looker) in enumerate(zip(ctx.places, ctx.lookers, strict=True)):
            q, k, v, upstream = _heads(query, looker), _heads(key, place), _heads(value, place), _heads(given, looker)
            weights, stay = (*saved[number * each : (number + 1) * each], None)[:2]
            slopes = upstream @ v.mT  # [n * heads, L, L]
            if stay is not None:
                slopes.mul_(stay)
            slopes = torch._softmax_backward_data(slopes, weights, -1, weights.dtype)
            _write(found[0], looker, slopes @ k, ctx.shrink)
            _write(found[1], place, slopes.mT @ q, None)
            _write(found[2], place, _dropped(weights, stay).mT @ upstream, None)
        return *found, None, None, None, None


def _heads(part: Tensor, place: Place) -> Tensor:
    """A group's [n * heads, L, width], from [T, heads, width]; a text by itself is not copied."""
    first, texts, length = place
    return part[first : first + texts * length].unflatten(0, (texts, length)).transpose(1, 2).flatten(0, 1)


def _write(packed: Tensor, place: Place, made: Tensor, factor: float | None) -> None:
    """What was made of a group [n * heads, L, width], times a factor, to its place in [T, heads, width]."""
    first, texts, length = place
    room = packed[first : first + texts * length].unflatten(0, (texts, length)).transpose(1, 2)
    made = made.unflatten(0, (texts, -1))
    if factor is None:
        room.copy_(made)
    else:
        torch.mul(made, factor, out=room)


def _stay(forgetting: Forgetting, looker: Place, heads: int, count: int) -> Tensor:
    """Which of `count` weights of each token that looks stay, as `kept` says it: [n * heads, L, count]."""
    first, texts, length = looker
    keys = forgetting.keys[first : first + texts * length].view(texts, 1, length)
    own = keys + torch.arange(heads, device=keys.device)[:, None] * HEADS_APART  # [n, heads, L]
    return kept(own.flatten(0, 1), count, forgetting.rate, forgetting.site)


def _dropped(weights: Tensor, stay: Tensor | None) -> Tensor:
    return weights if stay is None else weights * stay
