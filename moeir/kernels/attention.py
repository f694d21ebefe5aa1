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

COLUMN_MULTIPLE = 16  # CUDA's attention kernels copy a mask whose row length is not a multiple of this
MAX_HEAD_WIDTH = 256  # of FlashAttention
FLASH_ARGUMENTS = ("query", "key", "value", "cum_seq_q", "cum_seq_k", "max_q", "max_k", "dropout_p", "is_causal", "return_debug_mask")
FLASH_OPTIONS = {"scale", "window_size_left", "window_size_right"}
Value = TypeVar("Value")
Band: TypeAlias = tuple[int, int, bool]  # how many tokens before and after itself a token attends to; whether always to the first, too


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
    def padded_length(self) -> int:
        """Number of columns L of the texts as a padded batch, a multiple of `COLUMN_MULTIPLE`."""
        return -(-self.max_length // COLUMN_MULTIPLE) * COLUMN_MULTIPLE

    @cached_property
    def token_slots(self) -> Tensor:
        """[T] the slot of each token in the padded batch [B * L]."""
        return self.text_indices * self.padded_length + self.positions

    def pad(self, tokens: Tensor) -> Tensor:
        """The values of tokens [T, ...] as a padded batch [B, L, ...], zero at padding."""
        slots = tokens.new_zeros(len(self.lengths) * self.padded_length, *tokens.shape[1:])
        return slots.index_copy(0, self.token_slots, tokens).unflatten(0, (len(self.lengths), -1))

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

        def compute() -> Tensor:
            tokens = torch.ones_like(self.positions, dtype=torch.bool) if self.no_attend_mask is None else ~self.no_attend_mask
            mask = _attention_mask(self.pad(tokens), self.padded_length, band, tokens.device)
            assert mask is not None
            return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, float("-inf"))

        return self._cached(("padded", band, dtype), compute)

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


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: PackedLayout,
    reach: tuple[int | None, int | None] = (None, None),
    dropout: float = 0.0,
    scale: float | None = None,
    *,
    keeps_first: bool = False,
) -> Tensor:
    """Scaled dot-product attention within each text, to at most `reach` tokens before and after each (None: to all of that side; causal: 0
    after), and with `keeps_first` to the first token of its text always.

    query [T, heads, width], key and value [T, kv, width], where each of the kv heads serves heads / kv of the query -> [T, heads, width].
    Scores are multiplied by `scale`, 1 / sqrt(width) without it; each weight is dropped with probability `dropout` (Vaswani et al. 2017).
    On CUDA, if precision, width and GPU support it: FlashAttention over the texts' boundaries (Dao 2023). Otherwise scaled-dot-product
    attention, on a CPU over groups of neighbouring texts of equal length, on CUDA over one padded batch with a mask. The formula is the
    same. A token whose reach holds only tokens of `no_attend_mask` attends to itself.
    """
    farthest = max(layout.max_length - 1, 0)
    before, after = (farthest if one is None else min(one, farthest) for one in reach)
    band = None if before == after == farthest else (before, after, keeps_first)
    if query.is_cuda:
        keeps_distances = band is None or layout.no_attend_mask is None  # removing keys would change distances between tokens
        if keeps_distances and not keeps_first and supports_flash(query, value):
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
    q, k, v = (layout.pad(part).transpose(1, 2) for part in (query, key, value))  # [B, heads, L, width]
    return _sdpa(q, k, v, mask, dropout, scale).transpose(1, 2).flatten(0, 1).index_select(0, layout.token_slots)


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


def _attention_mask(attended: Tensor | None, length: int, band: Band | None, device: torch.device) -> Tensor | None:
    """Boolean attention mask, broadcast to [B, heads, L, L], from a key mask [B, L]; None if every token attends to every token, or if the
    band is causal and every token to those before."""
    before, after, keeps_first = (length, length, False) if band is None else band
    if not keeps_first and before >= length - 1 and (after >= length - 1 or (after == 0 and attended is None)):
        return None if attended is None else attended[:, None, None]
    positions = torch.arange(length, device=device)
    distance = positions[:, None] - positions  # of a key before its query
    allowed = (distance <= before) & (distance >= -after)
    allowed = allowed | (positions == 0) if keeps_first else allowed
    if attended is None:
        return allowed
    visible = allowed & attended[:, None, None]  # [B, 1, L, L]
    return visible | ((distance == 0) & ~visible.any(-1, keepdim=True))  # a row without any key would give a NaN softmax


def supports_flash(query: Tensor, value: Tensor) -> bool:
    """Whether FlashAttention takes these heads: half precision, equal widths that it supports, compute capability 8.0 or more."""
    width = query.shape[-1]
    supported = query.dtype in (torch.float16, torch.bfloat16) and value.shape[-1] == width <= MAX_HEAD_WIDTH and width % 8 == 0
    return supported and torch.cuda.get_device_capability(query.device) >= (8, 0) and has_flash_operator()


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
    starts, longest, (left, right, _) = layout.cumulative_lengths, layout.max_length, band or (-1, -1, False)
    sizes = (*starts, longest, longest)
    operator, window = torch.ops.aten._flash_attention_forward, {"window_size_left": left, "window_size_right": right}
    output: Tensor = operator(query, key, value, *sizes, dropout, False, False, scale=scale, **window)[0]
    return output
