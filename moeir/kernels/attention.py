"""Attention over packed texts: tokens attend only within their own text, all of it or by a mask of token pairs as decoders need it.
Padding exists at most inside this file.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import groupby
from typing import Any, TypeAlias, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.backends import cuda

from moeir.kernels.precision import compute_capability

COLUMN_MULTIPLE = 16  # CUDA's attention kernels copy a mask whose row length is not a multiple of this
MAX_HEAD_WIDTH = 256  # of FlashAttention
FLASH_ARGUMENTS = ("query", "key", "value", "cum_seq_q", "cum_seq_k", "max_q", "max_k", "dropout_p", "is_causal", "return_debug_mask")
FLASH_OPTIONS = {"scale", "window_size_left", "window_size_right"}
Value = TypeVar("Value")
Band: TypeAlias = tuple[int, int]  # how many tokens before itself and after itself a token attends to


@dataclass(frozen=True)
class PaddedBatch:
    """The packed tokens of B texts as a padded batch of L columns: `rows` [B * L] the token at each slot (padding repeats token 0),
    `token_slots` [T] the slot of each token, `key_mask` [B, L] true at slots that are attended to."""

    rows: Tensor
    token_slots: Tensor
    key_mask: Tensor


@dataclass(frozen=True)
class PackedLayout:
    """Boundaries of the texts in a packed batch; derived tensors are computed once and shared by all layers.

    `lengths` (host) are in the order of the tokens, `starts` [B+1]; `no_attend_mask` [T] marks tokens that attend but are not attended to.
    `precomputed_keys` are the rows of all other tokens with their own starts [B+1], if the mask was known on the host.
    """

    lengths: tuple[int, ...]
    starts: Tensor
    no_attend_mask: Tensor | None = None
    precomputed_keys: tuple[Tensor, Tensor] | None = None
    _cache: dict[object, Any] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def max_length(self) -> int:
        """Number of tokens of the longest text."""
        return max(self.lengths, default=0)

    @cached_property
    def text_indices(self) -> Tensor:
        """[T] the index of each token's text."""
        texts = torch.arange(len(self.lengths), device=self.starts.device)
        return torch.repeat_interleave(texts, self.starts.diff(), output_size=sum(self.lengths))

    @cached_property
    def positions(self) -> Tensor:
        """[T] the position of each token in its text, from 0."""
        return torch.arange(len(self.text_indices), device=self.starts.device) - self.starts.index_select(0, self.text_indices)

    @cached_property
    def padding(self) -> PaddedBatch:
        """The texts as a padded batch; its number of columns is a multiple of `COLUMN_MULTIPLE`."""
        columns = -(-self.max_length // COLUMN_MULTIPLE) * COLUMN_MULTIPLE
        positions = self.starts[:-1, None] + torch.arange(columns, device=self.starts.device)
        real = positions < self.starts[1:, None]
        rows = torch.where(real, positions, 0).flatten()
        attended = real if self.no_attend_mask is None else real & ~self.no_attend_mask.index_select(0, rows).view_as(real)
        return PaddedBatch(rows, self.text_indices * columns + self.positions, attended)

    @cached_property
    def cumulative_lengths(self) -> tuple[Tensor, Tensor]:
        """int32 text boundaries [B+1] for FlashAttention: among all tokens, and among those attended to."""
        starts = self.starts.int()
        return starts, starts if self.no_attend_mask is None else self.visible_keys[1].int()

    @cached_property
    def visible_keys(self) -> tuple[Tensor, Tensor]:
        """The rows of tokens that are attended to, and the start of each text among them [B+1]."""
        assert self.no_attend_mask is not None
        return find_visible_keys(self.no_attend_mask, self.starts) if self.precomputed_keys is None else self.precomputed_keys

    def rotary_angles(self, theta: float, width: int) -> tuple[Tensor, Tensor]:
        """Cosine and sine [T, 1, width / 2] of each token's rotary angles: position times theta^(-2 i / width) (Su et al. 2021)."""

        def compute() -> tuple[Tensor, Tensor]:
            steps = torch.arange(0, width, 2, dtype=torch.float32, device=self.starts.device)
            angles = self.positions.float()[:, None, None] * (1.0 / theta ** (steps / width))
            return angles.cos(), angles.sin()

        return self._cached(("angles", theta, width), compute)

    @cached_property
    def equal_length_groups(self) -> list[tuple[int, int]]:
        """Groups of neighbouring texts of equal length: number of texts, length."""
        return [(len(list(texts)), length) for length, texts in groupby(self.lengths)]

    def group_masks(self, band: Band | None) -> list[Tensor | None]:
        """The attention mask of each group, in the form of `_attention_mask`."""

        def compute() -> list[Tensor | None]:
            groups, device = self.equal_length_groups, self.starts.device
            if self.no_attend_mask is None:
                return [_attention_mask(None, length, band, device) for _, length in groups]
            parts = (~self.no_attend_mask).split([texts * length for texts, length in groups])
            return [_attention_mask(part.view(group), group[1], band, device) for part, group in zip(parts, groups, strict=True)]

        return self._cached(("groups", band), compute)

    def padded_mask(self, band: Band | None, dtype: torch.dtype) -> Tensor:
        """Additive attention mask of the padded batch: 0 or −∞, [B, 1, 1 or L, L]."""
        attended = self.padding.key_mask
        return self._cached(
            ("padded", band, dtype),
            lambda: additive_mask(_attention_mask(attended, attended.shape[1], band, attended.device), dtype),
        )

    def _cached(self, key: object, compute: Callable[[], Value]) -> Value:
        if key not in self._cache:
            self._cache[key] = compute()
        value: Value = self._cache[key]
        return value


def find_visible_keys(no_attend_mask: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
    """The rows of the tokens that `no_attend_mask` [T] does not mark, and the start of each text among them, [B+1].

    >>> find_visible_keys(torch.tensor([False, True, False]), torch.tensor([0, 2, 3]))
    (tensor([0, 2]), tensor([0, 1, 2]))
    """
    counts = F.pad((~no_attend_mask).long().cumsum(0), (1, 0))
    return (~no_attend_mask).nonzero()[:, 0], counts.index_select(0, starts)


def apply_rotary(states: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Apply rotary position embeddings: dimensions i and i + width / 2 of a head rotate as a pair, in float32.

    states [T, heads, width], cosine and sine [T, 1, width / 2] -> [T, heads, width].
    """
    first, second = states.float().chunk(2, dim=-1)
    rotated = torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)
    return rotated.to(states.dtype)


def attention(query: Tensor, key: Tensor, value: Tensor, layout: PackedLayout, window: int | None = None, dropout: float = 0.0) -> Tensor:
    """Scaled dot-product attention within each text, and within `window` // 2 tokens on either side if there is a window.

    query, key, value [T, heads, width] -> [T, heads, width]; each weight is dropped with probability `dropout` (Vaswani et al. 2017). On
    CUDA, if precision, width and GPU support it: FlashAttention over the texts' boundaries (Dao 2023). Otherwise scaled-dot-product
    attention, on a CPU over groups of neighbouring texts of equal length, on CUDA over one padded batch with a mask. The formula is the
    same. A token whose window holds only tokens of `no_attend_mask` attends to itself.
    """
    half_window = None if window is None else window // 2
    return banded_attention(query, key, value, layout, (half_window, half_window), dropout)


def banded_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: PackedLayout,
    reach: tuple[int | None, int | None],
    dropout: float,
    scale: float | None = None,
) -> Tensor:
    """`attention` of each token to those at most `reach` tokens before and after it (None: to all of that side; causal: 0 after).

    query [T, heads, width], key and value [T, kv, width], where each of the kv heads serves heads / kv of the query -> [T, heads, width].
    Scores are multiplied by `scale`, 1 / sqrt(width) without it.
    """
    farthest = max(layout.max_length - 1, 0)
    before, after = (farthest if one is None else min(one, farthest) for one in reach)
    band = None if before == after == farthest else (before, after)
    if query.is_cuda:
        keeps_distances = band is None or layout.no_attend_mask is None  # removing keys would change distances between tokens
        if keeps_distances and supports_flash(query, value):
            return _flash_attention(query, key, value, layout, band, dropout, scale)
        return padded_sdpa(query, key, value, layout, layout.padded_mask(band, query.dtype), dropout, scale)
    is_causal = band is not None and after == 0
    return grouped_sdpa(query, key, value, layout, layout.group_masks(band), dropout, scale, is_causal=is_causal)


def grouped_sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: PackedLayout,
    masks: Sequence[Tensor | None],
    dropout: float,
    scale: float | None = None,
    *,
    is_causal: bool = False,
) -> Tensor:
    """For a CPU: attention of packed texts in groups of equal length, [T, heads, width] -> [T, heads, width].

    `masks` holds the attention mask of each group, broadcast to [texts, heads, L, L]; where it is None, all tokens are attended to, or with
    `is_causal` those before. The packed tensors are split once, so that their gradients are concatenated once.
    """
    groups = layout.equal_length_groups
    parts = (part.split([texts * length for texts, length in groups]) for part in (query, key, value))
    outputs = []
    for (texts, _), mask, q, k, v in zip(groups, masks, *parts, strict=True):
        q, k, v = (part.unflatten(0, (texts, -1)).transpose(1, 2) for part in (q, k, v))  # [texts, heads, L, width]
        causal = is_causal and mask is None
        outputs.append(_sdpa(q, k, v, mask, dropout, scale, is_causal=causal).transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs) if outputs else torch.zeros_like(query)


def padded_sdpa(
    query: Tensor, key: Tensor, value: Tensor, layout: PackedLayout, mask: Tensor, dropout: float = 0.0, scale: float | None = None
) -> Tensor:
    """For CUDA: attention of packed texts as one padded batch, [T, heads, width] -> [T, heads, width].

    `mask` is added to the scores and broadcast to [B, heads, L, L].
    """
    padding, texts = layout.padding, len(layout.lengths)
    padded = (_PadTokens.apply(part, padding.rows, padding.token_slots) for part in (query, key, value))
    q, k, v = (part.unflatten(0, (texts, -1)).transpose(1, 2) for part in padded)  # [B, heads, L, width]
    output = _sdpa(q, k, v, mask, dropout, scale).transpose(1, 2).flatten(0, 1)
    packed: Tensor = _UnpadTokens.apply(output, padding.rows, padding.token_slots)
    return packed


def _sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, scale: float | None, *, is_causal: bool = False) -> Tensor:
    """Scaled dot-product attention, [texts, heads, L, width] each; key and value may have fewer heads."""
    grouped = q.shape[1] != k.shape[1]
    with _without_cudnn() if q.is_cuda else nullcontext():
        return F.scaled_dot_product_attention(q, k, v, mask, dropout, is_causal, scale=scale, enable_gqa=grouped)


@contextmanager
def _without_cudnn() -> Iterator[None]:
    """Attention without cuDNN, which drops weights at multiples of 1/16 alone, and plans anew for each shape (pytorch #174245)."""
    allowed = cuda.cudnn_sdp_enabled()
    cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        cuda.enable_cudnn_sdp(allowed)


def additive_mask(mask: Tensor | None, dtype: torch.dtype) -> Tensor:
    """A boolean mask, true where a token attends, as an additive mask: 0 or −∞."""
    assert mask is not None
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, float("-inf"))


class _PadTokens(torch.autograd.Function):
    """Packed rows [T, ...] to padded ones [B * L, ...]. Padding has no gradient, so the backward pass is a lookup, not a sum."""

    @staticmethod
    def forward(ctx: Any, packed: Tensor, rows: Tensor, slots: Tensor) -> Tensor:
        ctx.save_for_backward(slots)
        return packed.index_select(0, rows)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return gradients[0].index_select(0, ctx.saved_tensors[0]), None, None


class _UnpadTokens(torch.autograd.Function):
    """Padded rows [B * L, ...] to packed ones [T, ...]; the gradient of padding is 0."""

    @staticmethod
    def forward(ctx: Any, padded: Tensor, rows: Tensor, slots: Tensor) -> Tensor:
        ctx.save_for_backward(rows, slots)
        return padded.index_select(0, slots)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        rows, slots = ctx.saved_tensors
        padded = gradients[0].new_zeros(len(rows), *gradients[0].shape[1:])
        return padded.index_copy_(0, slots, gradients[0]), None, None


def _attention_mask(attended: Tensor | None, length: int, band: Band | None, device: torch.device) -> Tensor | None:
    """Boolean attention mask, broadcast to [B, heads, L, L], from a key mask [B, L]; None if every token attends to every token, or if the
    band is causal and every token to those before."""
    before, after = (length, length) if band is None else band
    if before >= length - 1 and (after >= length - 1 or (after == 0 and attended is None)):
        return None if attended is None else attended[:, None, None]
    positions = torch.arange(length, device=device)
    distance = positions[:, None] - positions  # of a key before its query
    allowed = (distance <= before) & (distance >= -after)
    if attended is None:
        return allowed
    visible = allowed & attended[:, None, None]  # [B, 1, L, L]
    return visible | ((distance == 0) & ~visible.any(-1, keepdim=True))  # a row without any key would give a NaN softmax


def supports_flash(query: Tensor, value: Tensor) -> bool:
    """Whether FlashAttention takes these heads: half precision, equal widths that it supports, compute capability 8.0 or more."""
    width = query.shape[-1]
    supported = query.dtype in (torch.float16, torch.bfloat16) and value.shape[-1] == width <= MAX_HEAD_WIDTH and width % 8 == 0
    return supported and compute_capability(query.device) >= (8, 0) and has_flash_operator()


@cache
def has_flash_operator() -> bool:
    """Whether this torch has FlashAttention's private operator, with the arguments that it is called with here and no others required."""
    operator = getattr(torch.ops.aten, "_flash_attention_forward", None)
    if operator is None or not cuda.is_flash_attention_available():
        return False
    arguments = operator.default._schema.arguments
    required = tuple(one.name for one in arguments if not one.has_default_value())
    return required == FLASH_ARGUMENTS and {one.name for one in arguments if one.kwarg_only} >= FLASH_OPTIONS


def _flash_attention(
    query: Tensor, key: Tensor, value: Tensor, layout: PackedLayout, band: Band | None, dropout: float, scale: float | None
) -> Tensor:
    if layout.no_attend_mask is not None:
        rows = layout.visible_keys[0]
        key, value = key.index_select(0, rows), value.index_select(0, rows)
    starts, longest, (left, right) = layout.cumulative_lengths, layout.max_length, band or (-1, -1)
    sizes = (*starts, longest, longest)
    operator, window = torch.ops.aten._flash_attention_forward, {"window_size_left": left, "window_size_right": right}
    output: Tensor = operator(query, key, value, *sizes, dropout, False, False, scale=scale, **window)[0]
    return output


def causal_attention(query: Tensor, key: Tensor, value: Tensor, layout: PackedLayout, window: int, dropout: float = 0.0) -> Tensor:
    """Scaled dot-product attention within each text, of each token to those that `causal_mask` allows: [T, heads, width] each, and out.

    On a CPU: groups of neighbouring texts of equal length; on CUDA: one padded batch.
    """
    if query.is_cuda:
        attended = layout.padding.key_mask
        allowed = causal_mask(attended.shape[1], window, query.device) & attended[:, None]  # [B, L, L]
        return padded_sdpa(query, key, value, layout, additive_mask(allowed[:, None], query.dtype), dropout)
    masks = [causal_mask(length, window, query.device) for _, length in layout.equal_length_groups]
    return grouped_sdpa(query, key, value, layout, masks, dropout)


def causal_mask(length: int, window: int, device: torch.device | str = "cpu") -> Tensor:
    """[L, L] true where token i attends to token j: to token 0 and the last `window` tokens, itself included; with -1 to all up to itself.

    >>> causal_mask(4, 2).int()
    tensor([[1, 0, 0, 0],
            [1, 1, 0, 0],
            [1, 1, 1, 0],
            [1, 0, 1, 1]], dtype=torch.int32)
    """
    positions = torch.arange(length, device=device)
    distance = positions[:, None] - positions  # i − j
    in_window = (distance >= 0) if window < 0 else (distance >= 0) & (distance < window)
    return in_window | (positions == 0)
