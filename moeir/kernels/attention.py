"""Attention over packed texts: no text sees another, and padding exists at most inside this file."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from moeir.kernels.forgetful import Place, forgetful, grouped
from moeir.kernels.noise import Forgetting, of_tokens


@dataclass(frozen=True)
class Layout:
    """Where the texts of a batch lie among its packed tokens, worked out once for all layers.

    `lengths` (host) are in the order of the tokens; `silent` [T] marks tokens that look but are not looked at; `ids` [T] are what noise
    comes from, where there is any.
    """

    lengths: tuple[int, ...]
    starts: Tensor
    silent: Tensor | None = None
    ids: Tensor | None = None
    _turns: dict[tuple[float, int], tuple[Tensor, Tensor]] = field(default_factory=dict, repr=False, compare=False)

    _noise: dict[int, Tensor] = field(default_factory=dict, repr=False, compare=False)

    def noise(self) -> Tensor:
        """[T] a number for each token, of which its dropout comes: see `kernels.noise`."""
        seed = torch.initial_seed()
        if seed not in self._noise:
            assert self.ids is not None
            owners = torch.repeat_interleave(self.starts[1:] - self.starts[:-1], output_size=len(self.ids))
            self._noise.clear()
            self._noise[seed] = of_tokens(self.ids, owners, self.positions(), len(self.lengths))
        return self._noise[seed]

    def positions(self) -> Tensor:
        """[T] the place of each token in its text, from 0."""
        sizes = self.starts[1:] - self.starts[:-1]
        count = sum(self.lengths)
        return torch.arange(count, device=sizes.device) - torch.repeat_interleave(self.starts[:-1], sizes, output_size=count)

    def padded(self) -> tuple[Tensor, Tensor]:
        """Of a batch padded to its longest text: the token at each place [B, L], and which places are real; padding is token 0."""
        places = self.starts[:-1, None] + torch.arange(max(self.lengths, default=0), device=self.starts.device)
        real = places < self.starts[1:, None]
        return torch.where(real, places, 0), real

    def turns(self, theta: float, width: int) -> tuple[Tensor, Tensor]:
        """Cosine and sine [T, 1, width / 2] of each token's angles: its position times theta^(-2 i / width) (Su et al. 2021)."""
        if (theta, width) not in self._turns:
            steps = torch.arange(0, width, 2, dtype=torch.float32, device=self.starts.device)
            angles = self.positions().float()[:, None, None] * (1.0 / theta ** (steps / width))
            self._turns[theta, width] = angles.cos(), angles.sin()
        return self._turns[theta, width]

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


def rotated(states: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary positions: number i of a head and number i + width / 2 turn as a pair, in float32.

    states [T, heads, width], cosine and sine [T, 1, width / 2] -> [T, heads, width].
    """
    first, second = states.float().chunk(2, dim=-1)
    turned = torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)
    return turned.to(states.dtype)


def attention(
    query: Tensor, key: Tensor, value: Tensor, layout: Layout, window: int | None = None, forgetting: Forgetting | None = None
) -> Tensor:
    """Scaled dot-product attention within each text, and within `window` // 2 tokens on either side if there is a window.

    query, key, value [T, heads, width] -> [T, heads, width]. On CUDA in half precision without dropout, for widths its kernels know:
    variable-length attention. Elsewhere: groups of neighbouring texts of one length on a CPU, one masked batch on CUDA. The formula is
    the same. A token whose window holds nothing but silent tokens looks at itself.
    """
    reach = None if window is None or max(layout.lengths, default=0) <= window // 2 + 1 else window // 2
    fast = query.is_cuda and forgetting is None and query.dtype in (torch.float16, torch.bfloat16) and query.shape[-1] % 8 == 0
    if fast and (reach is None or layout.silent is None):  # without its silent keys a text has other distances
        return _varlen(query, key, value, layout, reach)
    if query.is_cuda:
        return _masked(query, key, value, layout, reach, forgetting)
    places = layout.groups()
    return together(query, key, value, places, [_seen_in(layout, place, reach, query.device) for place in places], forgetting)


def first_attention(query: Tensor, key: Tensor, value: Tensor, layout: Layout, forgetting: Forgetting | None = None) -> Tensor:
    """The same of the first token of each text alone: query [B, heads, width], key and value [T, heads, width] -> [B, heads, width]."""
    if query.is_cuda:
        rows, real = layout.padded()  # [B, L]
        heard = real if layout.silent is None else real & ~layout.silent[rows]
        k, v = (part.index_select(0, rows.flatten()).unflatten(0, rows.shape).transpose(1, 2) for part in (key, value))
        keys = None if forgetting is None else forgetting.keys[:, None]
        return dotted(query[:, :, None], k, v, heard[:, None, None], forgetting, keys)[:, :, 0]
    places, lookers, number = layout.groups(), [], 0
    for _, texts, _ in places:
        lookers.append((number, texts, 1))
        number += texts
    return together(query, key, value, places, [_seen_in(layout, place, None, query.device) for place in places], forgetting, lookers)


def _seen(heard: Tensor | None, length: int, reach: int | None, device: torch.device) -> Tensor | None:
    """What each token looks at, to be broadcast to [B, heads, L, L], from what may be looked at [B, L]; None for everything."""
    if reach is None or length <= reach + 1:
        return None if heard is None else heard[:, None, None]
    places = torch.arange(length, device=device)
    apart = (places[:, None] - places).abs()
    if heard is None:
        return apart <= reach
    near = (apart <= reach) & heard[:, None, None]  # [B, 1, L, L]
    return near | ((apart == 0) & ~near.any(-1, keepdim=True))  # a row without any key would be no number


def _seen_in(layout: Layout, place: Place, reach: int | None, device: torch.device) -> Tensor | None:
    first, texts, length = place
    heard = None if layout.silent is None else ~layout.silent[first : first + texts * length].view(texts, length)
    return _seen(heard, length, reach, device)


def together(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    places: Sequence[Place],
    seen: Sequence[Tensor | None],
    forgetting: Forgetting | None,
    lookers: Sequence[Place] | None = None,
) -> Tensor:
    """Attention of packed texts by groups of one length, as `grouped` says it; by torch's own kernel where nothing learns."""
    if forgetting is not None or (torch.is_grad_enabled() and any(part.requires_grad for part in (query, key, value))):
        return grouped(query, key, value, places, seen, forgetting, lookers)
    mixed = []
    for place, looker, heard in zip(places, lookers or places, seen, strict=True):
        sides = ((query, looker), (key, place), (value, place))
        parts = (
            part[first : first + texts * length].unflatten(0, (texts, length)).transpose(1, 2) for part, (first, texts, length) in sides
        )  # [n, heads, L, width]
        mixed.append(F.scaled_dot_product_attention(*parts, attn_mask=heard).transpose(1, 2).flatten(0, 1))
    return torch.cat(mixed)


def _masked(
    query: Tensor, key: Tensor, value: Tensor, layout: Layout, reach: int | None = None, forgetting: Forgetting | None = None
) -> Tensor:
    rows, real = layout.padded()  # [B, L]
    heard = real if layout.silent is None else real & ~layout.silent[rows]
    q, k, v = (part.index_select(0, rows.flatten()).unflatten(0, rows.shape).transpose(1, 2) for part in (query, key, value))
    keys = None if forgetting is None else forgetting.keys[rows]
    mixed = dotted(q, k, v, _seen(heard, rows.shape[1], reach, query.device), forgetting, keys)
    return mixed.transpose(1, 2).flatten(0, 1).index_select(0, real.flatten().nonzero()[:, 0])


def dotted(
    query: Tensor, key: Tensor, value: Tensor, seen: Tensor | None, forgetting: Forgetting | None, keys: Tensor | None
) -> Tensor:
    """Attention of a padded batch, [n, heads, L, width]; `keys` [n, L] are those of `forgetting`, if weights are dropped."""
    if forgetting is None or keys is None:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=seen)
    return forgetful(query, key, value, seen, keys, forgetting.rate, forgetting.site)


def _varlen(query: Tensor, key: Tensor, value: Tensor, layout: Layout, reach: int | None) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn  # brings torch's compiler: 1.3 s that only CUDA is worth

    starts, longest = layout.starts.int(), max(layout.lengths, default=0)
    seen_starts = starts
    if layout.silent is not None:
        kept = ~layout.silent
        before = torch.cat([kept.new_zeros(1, dtype=torch.int64), kept.cumsum(0)])
        key, value, seen_starts = key[kept], value[kept], before[layout.starts].int()
    near = (-1, -1) if reach is None else (reach, reach)
    parts = (part.contiguous() for part in (query, key, value))
    return varlen_attn(*parts, starts, seen_starts, longest, longest, window_size=near)
