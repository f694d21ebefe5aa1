"""Attention over packed texts: no text sees another, and padding exists at most inside this file."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

PADDED_TO = 16  # CUDA's attention kernels take a mask as it is where its rows are a multiple of this long
WIDEST_HEAD = 256  # of the variable-length kernel
HALF = (torch.float16, torch.bfloat16)
Group = tuple[int, int, int]  # neighbouring texts of one length: first token, texts, length


@dataclass(frozen=True)
class Padding:
    """The packed tokens of B texts as a batch of L columns: `rows` [B * L] the token at each position (padding repeats token 0), `kept` [T]
    the position of each token, `attended` [B, L] which positions are attended to."""

    rows: Tensor
    kept: Tensor
    attended: Tensor


@dataclass(frozen=True)
class Layout:
    """Where the texts of a batch lie among its packed tokens; what is worked out of it is worked out once for all layers.

    `lengths` (host) are in the order of the tokens, `starts` [B+1]; `silent` [T] marks tokens that attend but are not attended to.
    `attended` are the rows of all other tokens with their own starts [B+1], where silent tokens were known on the host.
    """

    lengths: tuple[int, ...]
    starts: Tensor
    silent: Tensor | None = None
    attended: tuple[Tensor, Tensor] | None = None
    _angles: dict[tuple[float, int], tuple[Tensor, Tensor]] = field(default_factory=dict, repr=False, compare=False)
    _masks: dict[object, Any] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def longest(self) -> int:
        """Tokens of the longest text."""
        return max(self.lengths, default=0)

    @cached_property
    def owners(self) -> Tensor:
        """[T] the text of each token."""
        texts = torch.arange(len(self.lengths), device=self.starts.device)
        return torch.repeat_interleave(texts, self.starts.diff(), output_size=sum(self.lengths))

    @cached_property
    def positions(self) -> Tensor:
        """[T] the position of each token in its text, from 0."""
        return torch.arange(len(self.owners), device=self.starts.device) - self.starts.index_select(0, self.owners)

    @cached_property
    def padding(self) -> Padding:
        """The texts as a padded batch, whose columns are a multiple of `PADDED_TO`."""
        columns = -(-self.longest // PADDED_TO) * PADDED_TO
        positions = self.starts[:-1, None] + torch.arange(columns, device=self.starts.device)
        real = positions < self.starts[1:, None]
        rows = torch.where(real, positions, 0).flatten()
        attended = real if self.silent is None else real & ~self.silent.index_select(0, rows).view_as(real)
        return Padding(rows, self.owners * columns + self.positions, attended)

    @cached_property
    def cumulative_lengths(self) -> tuple[Tensor, Tensor]:
        """[B+1] where each text begins as the variable-length kernel wants it: among all tokens, and among those attended to."""
        starts = self.starts.int()
        return starts, starts if self.silent is None else self.attended_tokens[1].int()

    @cached_property
    def attended_tokens(self) -> tuple[Tensor, Tensor]:
        """The rows of tokens that are attended to, and where each text's begin among them [B+1]."""
        assert self.silent is not None
        return attended_tokens(self.silent, self.starts) if self.attended is None else self.attended

    def rotary_angles(self, theta: float, width: int) -> tuple[Tensor, Tensor]:
        """Cosine and sine [T, 1, width / 2] of each token's angles: its position times theta^(-2 i / width) (Su et al. 2021)."""
        if (theta, width) not in self._angles:
            steps = torch.arange(0, width, 2, dtype=torch.float32, device=self.starts.device)
            angles = self.positions.float()[:, None, None] * (1.0 / theta ** (steps / width))
            self._angles[theta, width] = angles.cos(), angles.sin()
        return self._angles[theta, width]

    @cached_property
    def equal_length_groups(self) -> list[Group]:
        """Runs of neighbouring texts of one length."""
        groups: list[Group] = []
        row = 0
        for length in self.lengths:
            if groups and groups[-1][2] == length:
                first, texts, _ = groups[-1]
                groups[-1] = (first, texts + 1, length)
            else:
                groups.append((row, 1, length))
            row += length
        return groups

    def group_masks(self, reach: int | None) -> list[Tensor | None]:
        """Of each group what its tokens attend to, as `_attention_mask` has it."""
        if ("groups", reach) not in self._masks:
            device = self.starts.device
            self._masks["groups", reach] = [
                _attention_mask(None if self.silent is None else ~_rows(self.silent, group), group[2], reach, device)
                for group in self.equal_length_groups
            ]
        masks: list[Tensor | None] = self._masks["groups", reach]
        return masks

    def padded_mask(self, reach: int | None, dtype: torch.dtype) -> Tensor:
        """What each token of the padded batch attends to, to be added to its scores: 0 or −∞, [B, 1, 1 or L, L]."""
        if (reach, dtype) not in self._masks:
            attended = self.padding.attended
            self._masks[reach, dtype] = additive(_attention_mask(attended, attended.shape[1], reach, attended.device), dtype)
        mask: Tensor = self._masks[reach, dtype]
        return mask


def attended_tokens(silent: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
    """The rows of the tokens that `silent` [T] does not mark, and where each text's begin among them, [B+1].

    >>> attended_tokens(torch.tensor([False, True, False]), torch.tensor([0, 2, 3]))
    (tensor([0, 2]), tensor([0, 1, 2]))
    """
    counts = F.pad((~silent).long().cumsum(0), (1, 0))
    return (~silent).nonzero()[:, 0], counts.index_select(0, starts)


def apply_rotary(states: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary positions: number i of a head and number i + width / 2 turn as a pair, in float32.

    states [T, heads, width], cosine and sine [T, 1, width / 2] -> [T, heads, width].
    """
    first, second = states.float().chunk(2, dim=-1)
    turned = torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)
    return turned.to(states.dtype)


def attention(query: Tensor, key: Tensor, value: Tensor, layout: Layout, window: int | None = None, dropout: float = 0.0) -> Tensor:
    """Scaled dot-product attention within each text, and within `window` // 2 tokens on either side if there is a window.

    query, key, value [T, heads, width] -> [T, heads, width]; each weight is dropped with probability `dropout` (Vaswani et al. 2017). On
    CUDA without dropout, where precision, width and card allow it: variable-length attention. Elsewhere scaled-dot-product attention, on a
    CPU over groups of neighbouring texts of one length, on CUDA over one padded batch with a mask. The formula is the same. A token whose
    window holds nothing but silent tokens attends to itself.
    """
    reach = None if window is None or layout.longest <= window // 2 + 1 else window // 2
    if query.is_cuda:
        distances_kept = reach is None or layout.silent is None  # without its silent keys a text has other distances
        if not dropout and distances_kept and has_varlen(query):
            return _varlen(query, key, value, layout, layout.cumulative_lengths[0], layout.longest, reach)
        return padded_sdpa(query, key, value, layout, layout.padded_mask(reach, query.dtype), dropout)
    return grouped_sdpa(query, key, value, layout, layout.group_masks(reach), dropout)


def first_attention(query: Tensor, key: Tensor, value: Tensor, layout: Layout, dropout: float = 0.0) -> Tensor:
    """The same of the first token of each text alone: query [B, heads, width], key and value [T, heads, width] -> [B, heads, width]."""
    if not query.is_cuda:
        return grouped_sdpa(query, key, value, layout, layout.group_masks(None), dropout, firsts=True)
    if not dropout and has_varlen(query):
        texts = torch.arange(len(query) + 1, dtype=torch.int32, device=query.device)
        return _varlen(query, key, value, layout, texts, 1, None)
    padding = layout.padding
    k, v = (_padded(part, padding, len(query)) for part in (key, value))
    mask = layout.padded_mask(None, query.dtype)
    return F.scaled_dot_product_attention(query[:, :, None], k, v, attn_mask=mask, dropout_p=dropout)[:, :, 0]


def grouped_sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: Layout,
    masks: Sequence[Tensor | None],
    dropout: float = 0.0,
    *,
    firsts: bool = False,
) -> Tensor:
    """For a CPU: attention of packed texts by groups of one length, [T, heads, width] -> [T, heads, width].

    With `firsts` only the first token of each text attends: query [B, heads, width] -> [B, heads, width]. `masks` say of each group what
    its tokens attend to, to be broadcast to [texts, heads, L, L]. The packed tensors are split once, so that their gradients are put
    together once.
    """
    groups = layout.equal_length_groups
    keys = [texts * length for _, texts, length in groups]
    queries = [texts for _, texts, _ in groups] if firsts else keys
    mixed = []
    parts = (query.split(queries), key.split(keys), value.split(keys))
    for (_, texts, _), mask, q, k, v in zip(groups, masks, *parts, strict=True):
        q, k, v = (part.unflatten(0, (texts, -1)).transpose(1, 2) for part in (q, k, v))  # [texts, heads, L, width]
        mixed.append(F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout).transpose(1, 2).flatten(0, 1))
    return torch.cat(mixed) if mixed else torch.zeros_like(query)


def padded_sdpa(query: Tensor, key: Tensor, value: Tensor, layout: Layout, mask: Tensor, dropout: float = 0.0) -> Tensor:
    """For CUDA: attention of packed texts as one padded batch, [T, heads, width] -> [T, heads, width].

    `mask` is added to the scores, to be broadcast to [B, heads, L, L].
    """
    padding, texts = layout.padding, len(layout.lengths)
    q, k, v = (_padded(part, padding, texts) for part in (query, key, value))
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout).transpose(1, 2).flatten(0, 1)
    packed: Tensor = _Unpad.apply(mixed, padding.rows, padding.kept)
    return packed


def additive(mask: Tensor | None, dtype: torch.dtype) -> Tensor:
    """A mask that is true where a token attends, as numbers to add to scores: 0 or −∞."""
    assert mask is not None
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, float("-inf"))


def _padded(part: Tensor, padding: Padding, texts: int) -> Tensor:
    """[T, heads, width] -> [B, heads, L, width]."""
    padded: Tensor = _Pad.apply(part, padding.rows, padding.kept)
    return padded.unflatten(0, (texts, -1)).transpose(1, 2)


class _Pad(torch.autograd.Function):
    """Packed rows [T, ...] to padded ones [B * L, ...]. Padding has no gradient, so that each token's is looked up and not added up."""

    @staticmethod
    def forward(ctx: Any, packed: Tensor, rows: Tensor, kept: Tensor) -> Tensor:
        ctx.save_for_backward(kept)
        return packed.index_select(0, rows)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return gradients[0].index_select(0, ctx.saved_tensors[0]), None, None


class _Unpad(torch.autograd.Function):
    """Padded rows [B * L, ...] to packed ones [T, ...]; the gradient of padding is 0."""

    @staticmethod
    def forward(ctx: Any, padded: Tensor, rows: Tensor, kept: Tensor) -> Tensor:
        ctx.save_for_backward(rows, kept)
        return padded.index_select(0, kept)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        rows, kept = ctx.saved_tensors
        padded = gradients[0].new_zeros(len(rows), *gradients[0].shape[1:])
        return padded.index_copy_(0, kept, gradients[0]), None, None


def _attention_mask(attended: Tensor | None, length: int, reach: int | None, device: torch.device) -> Tensor | None:
    """What each token attends to, to be broadcast to [B, heads, L, L], from what may be attended to [B, L]; None for everything."""
    if reach is None or length <= reach + 1:
        return None if attended is None else attended[:, None, None]
    positions = torch.arange(length, device=device)
    distance = (positions[:, None] - positions).abs()
    if attended is None:
        return distance <= reach
    near = (distance <= reach) & attended[:, None, None]  # [B, 1, L, L]
    return near | ((distance == 0) & ~near.any(-1, keepdim=True))  # the softmax of a row without any key would be NaN


def _rows(packed: Tensor, group: Group) -> Tensor:
    """[texts, L] a group's part of [T]."""
    first, texts, length = group
    return packed[first : first + texts * length].view(texts, length)


@cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


def has_varlen(query: Tensor) -> bool:
    """Whether the variable-length kernel takes these heads: half precision, a width it knows, compute capability 8.0 or more."""
    width = query.shape[-1]
    return query.dtype in HALF and width <= WIDEST_HEAD and width % 8 == 0 and _capability(query.device) >= (8, 0)


def _varlen(query: Tensor, key: Tensor, value: Tensor, layout: Layout, starts: Tensor, longest: int, reach: int | None) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn  # brings torch's compiler: 1.3 s that only CUDA is worth

    if layout.silent is not None:
        rows = layout.attended_tokens[0]
        key, value = key.index_select(0, rows), value.index_select(0, rows)
    window = (-1, -1) if reach is None else (reach, reach)
    mixed: Tensor = varlen_attn(query, key, value, starts, layout.cumulative_lengths[1], longest, layout.longest, window_size=window)
    return mixed


def varlen_flops() -> dict[Any, Any]:
    """For torch's counter of operations: two products of every token with those of its own text, and five for the gradients."""
    from torch.nn.attention import varlen  # noqa: F401 - makes the operations that are named below

    def forward(query: Tensor, key: Tensor, value: Tensor, starts: Tensor, key_starts: Tensor, *rest: Any, **more: Any) -> int:
        pairs = int((starts.diff().long() * key_starts.diff()).sum())
        return 4 * pairs * query.shape[1] * query.shape[2]

    def backward(gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, sums: Tensor, *rest: Any, **more: Any) -> int:
        return forward(query, key, value, *rest) * 5 // 2

    forward._get_raw = backward._get_raw = True  # type: ignore[attr-defined]  # the lengths are wanted, not the shapes
    return {torch.ops.torch_attn._varlen_attn: forward, torch.ops.torch_attn._varlen_attn_backward: backward}
