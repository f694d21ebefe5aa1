"""Operations with CUDA-only kernels: fused attention, variable-length attention, grouped matrix products, dropout."""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from tests.device.fake_cuda import HANDLERS, DeviceTensor, NotSimulated, active_machine, handler_for

HALVES = (torch.float16, torch.bfloat16)
__all__ = ["HANDLERS"]


def require_one_card(name: str, *tensors: Tensor | None) -> int:
    """The card of all tensors; RuntimeError if they are not on one card."""
    devices = {str(one.device) for one in tensors if one is not None}
    if len(devices) > 1 or any(one is not None and not isinstance(one, DeviceTensor) for one in tensors):
        names = " and ".join(sorted(devices))
        raise RuntimeError(f"Expected all tensors to be on the same device, but found at least two devices, {names}! ({name})")
    return next(one.device.index for one in tensors if one is not None)


def to_accumulation_dtype(*tensors: Tensor) -> list[Tensor]:
    """The host's numbers in the accumulation dtype of kernels."""
    return [one.host.double() if one.dtype == torch.float64 else one.host.float() for one in tensors]


class Attention:
    """Attention […, L, M] of the host's numbers with an additive bias; `seed` draws the weights that are dropped, with probability `p`."""

    def __init__(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, scale: float | None, p: float, seed: int) -> None:
        self.parts, self.scale = (query, key, value), scale or query.shape[-1] ** -0.5
        scores = query @ key.transpose(-1, -2) * self.scale
        self.probabilities = (scores if bias is None else scores + bias).softmax(-1).nan_to_num(0.0)  # 0 for a fully masked row
        kept = torch.rand(scores.shape, generator=torch.Generator().manual_seed(seed)) >= p if p else 1.0
        self.factors = kept / (1 - p)

    def output(self) -> Tensor:
        """[…, L, width]."""
        return (self.probabilities * self.factors) @ self.parts[2]

    def gradients(self, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The gradients of query, key, value and bias."""
        query, key, value = self.parts
        weight_gradients = gradient @ value.transpose(-1, -2) * self.factors
        scores = self.probabilities * (weight_gradients - (weight_gradients * self.probabilities).sum(-1, keepdim=True))
        dropped = self.probabilities * self.factors
        return scores @ key * self.scale, scores.transpose(-1, -2) @ query * self.scale, dropped.transpose(-1, -2) @ gradient, scores


def draw_seed(card: int, p: float) -> Tensor:
    """A seed from the card's generator if there is dropout."""
    generator = active_machine().cards[card].generator
    return torch.randint(2**62, (), generator=generator) if p else torch.zeros((), dtype=torch.int64)


def _transpose_layout(host: Tensor, like: Any) -> DeviceTensor:
    """[B, heads, L, width] in the kernels' memory layout: heads are adjacent."""
    return DeviceTensor(host.to(like.dtype).transpose(1, 2).contiguous().transpose(1, 2), like.device.index)


@handler_for("_scaled_dot_product_efficient_attention")
def _efficient(
    func: Any, query: Any, key: Any, value: Any, bias: Any, sums_wanted: bool, dropout_p: float = 0.0, is_causal: bool = False, *,
    scale: Any = None,
) -> Any:  # fmt: skip
    if is_causal:
        raise NotSimulated("scaled_dot_product_attention with is_causal")
    card = require_one_card("scaled_dot_product_attention", query, key, value, bias)
    if len({one.dtype for one in (query, key, value, query if bias is None else bias)}) > 1:
        raise RuntimeError("Expected query, key, value and bias to have the same dtype")
    if bias is not None and (
        bias.stride(-1) != 1 or any(step % 8 for step, size in zip(bias.stride(), bias.shape, strict=True) if size > 1 and step > 1)
    ):
        raise RuntimeError("attn_bias is not correctly aligned: strides must be multiples of 8 elements")
    seed, own_bias = draw_seed(card, dropout_p), None if bias is None else bias.host.float()
    out = Attention(*to_accumulation_dtype(query, key, value), own_bias, scale, dropout_p, int(seed)).output()
    active_machine().launch("_scaled_dot_product_efficient_attention")
    sums = torch.zeros(*query.shape[:2], -(-query.shape[2] // 32) * 32 if sums_wanted else 0)
    return _transpose_layout(out, query), *(DeviceTensor(one, card) for one in (sums, seed, torch.zeros_like(seed)))


@handler_for("_scaled_dot_product_efficient_attention_backward")
def _efficient_back(
    func: Any, gradient: Any, query: Any, key: Any, value: Any, bias: Any, out: Any, sums: Any, seed: Any, offset: Any, dropout_p: float,
    wanted: Any, is_causal: bool = False, *, scale: float | None = None,
) -> Any:  # fmt: skip
    active_machine().launch("_scaled_dot_product_efficient_attention_backward", count=3)
    g, *parts = to_accumulation_dtype(gradient, query, key, value)
    own_bias = None if bias is None else bias.host.float()
    *gradients, scores = Attention(*parts, own_bias, scale, dropout_p, int(seed.host)).gradients(g)
    extra = None
    if bias is not None and wanted[3]:
        extra = DeviceTensor(scores.sum_to_size(bias.shape).to(bias.dtype), query.device.index)
    return *(_transpose_layout(one, query) for one in gradients), extra


def _text_slices(query: Any, key: Any, value: Any, starts_q: Any, starts_k: Any, max_q: Any, max_k: Any) -> list[tuple[slice, slice]]:
    """Check the kernel's requirements; return the slices of each text."""
    require_one_card("_flash_attention_forward", query, key, value, starts_q, starts_k)
    if active_machine().capability < (8, 0):
        raise RuntimeError("FlashAttention only supports Ampere GPUs or newer.")
    if {one.dtype for one in (query, key, value)} not in ({dtype} for dtype in HALVES):
        raise RuntimeError("FlashAttention only support fp16 and bf16 data type, the same for query, key and value")
    if any(one.dim() != 3 or one.stride(-1) != 1 for one in (query, key, value)):
        raise RuntimeError("_flash_attention_forward: expected [T, heads, width] with a contiguous last dimension")
    if query.shape[-1] % 8 or query.shape[-1] > 256:
        raise RuntimeError(f"FlashAttention forward only supports head dimension at most 256, multiples of 8: {query.shape[-1]}")
    if any(one.dtype != torch.int32 or not one.is_contiguous() for one in (starts_q, starts_k)):
        raise RuntimeError("cu_seqlens must have dtype int32 and be contiguous")
    bounds_q, bounds_k = starts_q.host.tolist(), starts_k.host.tolist()
    for bounds, tokens, longest in ((bounds_q, query, max_q), (bounds_k, key, max_k)):
        lengths = [last - first for first, last in pairwise(bounds)]
        if bounds[0] != 0 or bounds[-1] != len(tokens) or min(lengths) < 0:
            raise RuntimeError(f"cu_seqlens {bounds[0]} … {bounds[-1]} are not those of {len(tokens)} tokens")
        if max(lengths) > longest:
            raise RuntimeError(f"the longest text has {max(lengths)} tokens, and max_seqlen is {longest}")
    return [(slice(*q), slice(*k)) for q, k in zip(pairwise(bounds_q), pairwise(bounds_k), strict=True)]


def _window_bias(queries: int, keys: int, left: int | None, right: int | None) -> Tensor:
    """Additive mask of a window: 0 inside, −∞ outside; the last query is aligned with the last key."""
    left, right = (queries + keys if one in (None, -1) else one for one in (left, right))
    distance = torch.arange(queries)[:, None] + keys - queries - torch.arange(keys)
    return torch.zeros(distance.shape).masked_fill((distance > left) | (-distance > right), float("-inf"))


@handler_for("_flash_attention_forward")
def _packed_flash(
    func: Any, query: Any, key: Any, value: Any, starts_q: Any, starts_k: Any, max_q: int, max_k: int, dropout_p: float, is_causal: bool,
    debug: bool, *, scale: float | None = None, window_size_left: int | None = None, window_size_right: int | None = None, **others: Any,
) -> Any:  # fmt: skip
    if is_causal or starts_q is None or query.shape[1] != key.shape[1] or any(one is not None for one in others.values()):
        raise NotSimulated("_flash_attention_forward of a padded batch, with groups of heads, pages of keys, or is_causal")
    parts, card = _text_slices(query, key, value, starts_q, starts_k, max_q, max_k), query.device.index
    q, k, v = (one.transpose(0, 1) for one in to_accumulation_dtype(query, key, value))  # [heads, T, width]
    out, seed = torch.zeros_like(q), draw_seed(card, dropout_p)
    for number, (one, other) in enumerate(parts):
        near = _window_bias(one.stop - one.start, other.stop - other.start, window_size_left, window_size_right)
        out[:, one] = Attention(q[:, one], k[:, other], v[:, other], near, scale, dropout_p, int(seed) + number).output()
    active_machine().launch("_flash_attention_forward")
    state = torch.stack([seed, torch.zeros_like(seed)])
    outputs = (out.transpose(0, 1).contiguous().to(query.dtype), torch.zeros(q.shape[:2]), state, torch.empty(0), torch.empty(0))
    return tuple(DeviceTensor(one, card) for one in outputs)


@handler_for("_flash_attention_backward")
def _packed_flash_back(
    func: Any, gradient: Any, query: Any, key: Any, value: Any, out: Any, sums: Any, starts_q: Any, starts_k: Any, max_q: int, max_k: int,
    dropout_p: float, is_causal: bool, state: Any, unused: Any, *, scale: float | None = None, window_size_left: int | None = None,
    window_size_right: int | None = None,
) -> Any:  # fmt: skip
    g, q, k, v = (one.transpose(0, 1) for one in to_accumulation_dtype(gradient, query, key, value))
    gradients = [torch.zeros_like(one) for one in (q, k, v)]
    for number, (one, other) in enumerate(_text_slices(query, key, value, starts_q, starts_k, max_q, max_k)):
        near = _window_bias(one.stop - one.start, other.stop - other.start, window_size_left, window_size_right)
        text = Attention(q[:, one], k[:, other], v[:, other], near, scale, dropout_p, int(state.host[0]) + number)
        for target, rows, part in zip(gradients, (one, other, other), text.gradients(g[:, one]), strict=False):
            target[:, rows] = part
    active_machine().launch("_flash_attention_backward", count=3)
    return tuple(DeviceTensor(one.transpose(0, 1).contiguous().to(query.dtype), query.device.index) for one in gradients)


@handler_for("_grouped_mm")
def _grouped(func: Any, left: Any, right: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> Tensor:
    card = require_one_card("_grouped_mm", left, right, offs, bias)
    if left.dtype != right.dtype or not left.is_floating_point():
        raise RuntimeError("grouped_mm: expected factors of one floating-point format")
    if offs is None or left.dim() != 2:
        raise NotSimulated("_grouped_mm without offsets, or of a left factor with groups")
    if offs.dtype != torch.int32 or offs.dim() != 1:
        raise RuntimeError("Offsets have to be int32, one for each group")
    for one in (left, right):
        steps, bytes_ = one.stride(), 16 // one.element_size()
        if 1 not in steps[-2:] or (max(steps[-2:]) % bytes_ and min(one.shape[-2:]) > 1):
            raise RuntimeError(f"expected strides of a multiple of 16 bytes, found {steps} of {one.dtype}")
    out = _host_groups(left.host.float(), right.host.float(), offs.host.tolist())
    if left.dtype == torch.bfloat16 and active_machine().capability[0] in (9, 10):
        active_machine().launch("_grouped_mm")
    else:  # group by group, with offsets copied to the host
        active_machine().wait("_grouped_mm without a kernel")
        active_machine().launch("_grouped_mm by groups", count=len(offs))
    return DeviceTensor(out.to(out_dtype or left.dtype), card)


def _host_groups(left: Tensor, right: Tensor, ends: list[int]) -> Tensor:
    """Grouped products: over rows [T, K] × [G, K, N] -> [T, N], or over the inner dimension [M, T] × [T, N] -> [G, M, N]."""
    parts = list(pairwise([0, *ends]))
    if right.dim() == 2:
        return torch.stack([left[:, first:last] @ right[first:last] for first, last in parts])
    out = left.new_full((len(left), right.shape[-1]), float("nan"))  # rows after the last group are not written
    for number, (first, last) in enumerate(parts):
        out[first:last] = left[first:last] @ right[number]
    return out


@handler_for("mm.dtype", "bmm.dtype")
def _product(func: Any, left: Any, right: Any, out_dtype: torch.dtype) -> Tensor:
    card = require_one_card("mm", left, right)
    allowed = out_dtype == left.dtype or (left.dtype in HALVES and out_dtype == torch.float32)
    if not allowed or left.dtype != right.dtype:
        raise RuntimeError("out_dtype must be the same as input dtype or fp32 for fp16/bf16 inputs")
    active_machine().launch("mm.dtype")
    return DeviceTensor(left.host.to(out_dtype) @ right.host.to(out_dtype), card)


@handler_for("native_dropout")
def _dropout(func: Any, states: Any, p: float, train: bool | None) -> Any:
    card = require_one_card("native_dropout", states)
    if train is False or not states.host.numel():
        return states.clone(), DeviceTensor(torch.ones(states.shape, dtype=torch.bool), card)
    kept = torch.empty(states.shape, dtype=torch.bool).bernoulli_(1 - p, generator=active_machine().cards[card].generator)
    active_machine().launch("native_dropout")
    return DeviceTensor((states.host * kept / (1 - p)).to(states.dtype), card), DeviceTensor(kept, card)
