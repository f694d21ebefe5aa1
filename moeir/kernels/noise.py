"""Dropout and other noise as a function of (torch's seed, text, place): the same in any batch, on any process, at any recomputation.

A generator hands out its numbers in the order they are asked for, so that what one text gets depends on all others. Here a text's numbers
come from its own tokens and from the seed that was last set (`torch.manual_seed`): a training sets it anew at every step.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from moeir.kernels.scattered import STEPS, scattered

LEVELS = 1 << 16  # a probability is rounded to a multiple of 1 / 65,536
LANES = 4  # numbers of 16 bits in one of 64
STRIDE, APART = -0x61C8864680B583EB, -0x2E1B2138C9E5A9B3  # odd: every multiple is another number


def of_tokens(ids: Tensor, owners: Tensor, positions: Tensor, texts: int) -> Tensor:
    """A number for each token [T], from the seed, from all tokens of its text and from its place; owners and positions [T].

    Equal texts have equal numbers.
    """
    own = scattered((ids + 1) * APART + (positions + 1) * STRIDE)
    whole = own.new_zeros(texts).index_add_(0, owners, own)
    return scattered(whole.index_select(0, owners) + torch.initial_seed() % (1 << 62) + positions * STRIDE)


def lanes(keys: Tensor, count: int, site: int) -> Tensor:
    """`count` numbers of 16 bits, from −32,768 to 32,767, for each key: keys [...] -> int16 [..., count]; another `site`, other numbers."""
    wide = -(-count // LANES)
    places = torch.arange(1, wide + 1, device=keys.device) * STRIDE + _wrapped(site * APART)
    drawn = keys[..., None] + places
    for shift, factor in STEPS:
        drawn = (drawn ^ (drawn >> shift)).mul_(factor)
    drawn ^= (drawn >> 31) & 0x1FFFFFFFF
    return drawn.view(torch.int16)[..., :count]


def uniform(keys: Tensor, count: int, site: int) -> Tensor:
    """Numbers in (0, 1), float32 [..., count], for each key [...]."""
    places = torch.arange(1, count + 1, device=keys.device) * STRIDE + _wrapped(site * APART)
    return ((scattered(keys[..., None] + places) >> 41 & 0x7FFFFF).float() + 0.5) / (1 << 23)  # exact in float32, so never 1


def kept(keys: Tensor, count: int, rate: float, site: int) -> Tensor:
    """1 where one of `count` numbers of each key stays, 0 where it goes, which it does with probability `rate`: uint8 [..., count].

    Bytes and not truth values: a processor writes them, and multiplies by them, several times as fast.
    """
    drawn = lanes(keys, count, site)
    stay = torch.empty(drawn.shape, dtype=torch.uint8, device=drawn.device)
    return torch.ge(drawn, round(rate * LEVELS) - LEVELS // 2, out=stay)


@dataclass(frozen=True)
class Forgetting:
    """Which attention weights go: each with probability `rate`, by the number [T] of the token that looks, at one `site` of a model."""

    rate: float
    site: int
    keys: Tensor


class Noisy(nn.Module):
    """Where a model is noisy: `site` tells one such place from another, see `numbered`."""

    def __init__(self) -> None:
        super().__init__()
        self.site = 0

    def uniform(self, keys: Tensor, count: int) -> Tensor:
        """`count` numbers in (0, 1) for each key [n]: [n, count]."""
        return uniform(keys, count, self.site)


class Dropout(Noisy):
    """Dropout (Srivastava et al. 2014) by each row's own number."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    @property
    def active(self) -> bool:
        """Whether anything is dropped."""
        return self.training and self.rate > 0

    def forward(self, states: Tensor, keys: Tensor | None) -> Tensor:
        """states [n, H], keys [n] as `of_tokens` gives them (None where nothing is dropped) -> [n, H]."""
        if not self.active:
            return states
        assert keys is not None
        dropped: Tensor = _Dropped.apply(states, kept(keys, states.shape[-1], self.rate, self.site), scale(self.rate))
        return dropped

    def forgetting(self, keys: Tensor | None) -> Forgetting | None:
        """The same for attention weights; None where nothing is dropped."""
        if not self.active:
            return None
        assert keys is not None
        return Forgetting(self.rate, self.site, keys)


def _wrapped(number: int) -> int:
    """As int64 holds it."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def scale(rate: float) -> float:
    """What the numbers that stay are multiplied by, so that the mean stays."""
    return LEVELS / (LEVELS - round(rate * LEVELS))


def numbered(model: nn.Module) -> None:
    """Give every noisy place of a model its own site, in the order of its modules."""
    for site, module in enumerate(module for module in model.modules() if isinstance(module, Noisy)):
        module.site = site + 1


class _Dropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, stay: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(stay)
        ctx.scale = scale
        return torch.mul(states, stay).mul_(scale)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (stay,) = ctx.saved_tensors
        return torch.mul(gradients[0], stay).mul_(ctx.scale), None, None
