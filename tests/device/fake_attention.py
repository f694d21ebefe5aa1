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


def attention_weights(query: Tensor, key: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """Attention weights […, L, M] in at least float32; 0 for a fully masked row."""
    scores = query @ key.transpose(-1, -2) * scale
    if bias is not None:
        scores = scores + bias
    return scores.softmax(-1).nan_to_num(0.0)


def to_accumulation_dtype(*tensors: Tensor) -> list[Tensor]:
    """The host's numbers in the accumulation dtype of kernels."""
    return [one.host.double() if one.dtype == torch.float64 else one.host.float() for one in tensors]


def attend(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, scale: float, kept: Tensor | None) -> Tensor:
    """Attention; `kept` [L, M] is 0 for a dropped weight, else 1 / (1 - p)."""
    probabilities = attention_weights(query, key, bias, scale)
    return (probabilities if kept is None else probabilities * kept) @ value


def attention_gradients(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, scale: float, kept: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of query, key, value and bias."""
    probabilities = attention_weights(query, key, bias, scale)
    dropped = probabilities if kept is None else probabilities * kept
    weight_gradients = gradient @ value.transpose(-1, -2)
    weight_gradients = weight_gradients if kept is None else weight_gradients * kept
    scores = probabilities * (weight_gradients - (weight_gradients * probabilities).sum(-1, keepdim=True))
    return scores @ key * scale, scores.transpose(-1, -2) @ query * scale, dropped.transpose(-1, -2) @ gradient, scores


def dropout_mask(shape: torch.Size, p: float, seed: int) -> Tensor | None:
    """Dropout mask as factors of the weights."""
    if not p:
        return None
    kept = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) >= p
    return kept / (1 - p)


def draw_seed(card: int, p: float) -> Tensor:
    """A seed from the card's generator if there is dropout."""
    generator = active_machine().cards[card].generator
    return torch.randint(2**62, (), generator=generator) if p else torch.zeros((), dtype=torch.int64)


def _transpose_layout(host: Tensor, dtype: torch.dtype, card: int) -> DeviceTensor:
    """[B, heads, L, width] in the kernels' memory layout: heads are adjacent."""
    return DeviceTensor(host.to(dtype).transpose(1, 2).contiguous().transpose(1, 2), card)


def _run_forward(query: Any, key: Any, value: Any, bias: Any, p: float, causal: bool, scale: float | None) -> tuple[DeviceTensor, Tensor]:
    """The output of both kernels, and the dropout seed."""
    if causal:
        raise NotSimulated("scaled_dot_product_attention with is_causal")
    card = require_one_card("scaled_dot_product_attention", query, key, value, bias)
    if bias is not None and bias.dtype != query.dtype:
        raise RuntimeError("invalid dtype for bias - should match query's dtype")
    if not query.dtype == key.dtype == value.dtype:
        raise RuntimeError("Expected query, key, and value to have the same dtype")
    seed, (q, k, v) = draw_seed(card, p), to_accumulation_dtype(query, key, value)
    kept = dropout_mask(torch.Size((*q.shape[:-1], k.shape[-2])), p, int(seed))
    out = attend(q, k, v, None if bias is None else bias.host.float(), scale or q.shape[-1] ** -0.5, kept)
    return _transpose_layout(out, query.dtype, card), seed


def _run_backward(gradient: Any, query: Any, key: Any, value: Any, bias: Any, seed: Any, p: float, scale: float | None) -> Any:
    g, q, k, v = to_accumulation_dtype(gradient, query, key, value)
    kept = dropout_mask(torch.Size((*q.shape[:-1], k.shape[-2])), p, int(seed.host))
    *gradients, scores = attention_gradients(g, q, k, v, None if bias is None else bias.host.float(), scale or q.shape[-1] ** -0.5, kept)
    return [_transpose_layout(one, query.dtype, query.device.index) for one in gradients], scores


@handler_for("_scaled_dot_product_flash_attention")
def _flash(
    func: Any, query: Any, key: Any, value: Any, dropout_p: float = 0.0, is_causal: bool = False, debug: bool = False, *, scale: Any = None
) -> Any:
    if query.dtype not in HALVES or query.shape[-1] > 256 or query.shape[-1] % 8:
        raise RuntimeError("FlashAttention only supports half precision and head widths up to 256, multiples of 8")
    out, seed = _run_forward(query, key, value, None, dropout_p, is_causal, scale)
    active_machine().launch("_scaled_dot_product_flash_attention")
    card, nothing = query.device.index, torch.empty(0)
    state = torch.stack([seed, torch.zeros_like(seed)])
    parts = (torch.zeros(query.shape[:-1]), state, nothing, nothing.clone())
    sums, generator_state, unused, debug_mask = (DeviceTensor(one, card) for one in parts)
    return out, sums, None, None, query.shape[2], key.shape[2], generator_state, unused, debug_mask


@handler_for("_scaled_dot_product_flash_attention_backward")
def _flash_back(
    func: Any, gradient: Any, query: Any, key: Any, value: Any, out: Any, sums: Any, first: Any, second: Any, max_q: int, max_k: int,
    dropout_p: float, is_causal: bool, seed: Any, offset: Any, *, scale: float | None = None,
) -> Any:  # fmt: skip
    active_machine().launch("_scaled_dot_product_flash_attention_backward", 3, count=3)
    state = DeviceTensor(seed.host.flatten()[0], seed.device.index)
    return tuple(_run_backward(gradient, query, key, value, None, state, dropout_p, scale)[0])


@handler_for("_scaled_dot_product_efficient_attention")
def _efficient(
    func: Any, query: Any, key: Any, value: Any, bias: Any, sums_wanted: bool, dropout_p: float = 0.0, is_causal: bool = False, *,
    scale: Any = None,
) -> Any:  # fmt: skip
    if bias is not None and (
        bias.stride(-1) != 1 or any(step % 8 for step, size in zip(bias.stride(), bias.shape, strict=True) if size > 1 and step > 1)
    ):
        raise RuntimeError("attn_bias is not correctly aligned: strides must be multiples of 8 elements")
    out, seed = _run_forward(query, key, value, bias, dropout_p, is_causal, scale)
    active_machine().launch("_scaled_dot_product_efficient_attention")
    card = query.device.index
    sums = torch.zeros(*query.shape[:2], -(-query.shape[2] // 32) * 32 if sums_wanted else 0)
    return out, DeviceTensor(sums, card), DeviceTensor(seed, card), DeviceTensor(torch.zeros_like(seed), card)


@handler_for("_scaled_dot_product_efficient_attention_backward")
def _efficient_back(
    func: Any, gradient: Any, query: Any, key: Any, value: Any, bias: Any, out: Any, sums: Any, seed: Any, offset: Any, dropout_p: float,
    wanted: Any, is_causal: bool = False, *, scale: float | None = None,
) -> Any:  # fmt: skip
    active_machine().launch("_scaled_dot_product_efficient_attention_backward", 3, count=3)
    gradients, scores = _run_backward(gradient, query, key, value, bias, seed, dropout_p, scale)
    extra = None
    if bias is not None and wanted[3]:
        extra = DeviceTensor(scores.sum_to_size(bias.shape).to(bias.dtype), query.device.index)
    return (*gradients, extra)


def _text_slices(query: Any, key: Any, value: Any, starts_q: Any, starts_k: Any, max_q: Any, max_k: Any) -> list[tuple[slice, slice]]:
    """Check the kernel's requirements; return the slices of each text."""
    require_one_card("_flash_attention_forward", query, key, value, starts_q, starts_k)
    if active_machine().capability < (8, 0):
        raise RuntimeError("FlashAttention only supports Ampere GPUs or newer.")
    for one in (query, key, value):
        if one.dtype not in HALVES or one.dtype != query.dtype:
            raise RuntimeError("FlashAttention only support fp16 and bf16 data type, the same for query, key and value")
        if one.dim() != 3 or one.stride(-1) != 1:
            raise RuntimeError("_flash_attention_forward: expected [T, heads, width] with a contiguous last dimension")
    if query.shape[-1] % 8 or query.shape[-1] > 256:
        raise RuntimeError(f"FlashAttention forward only supports head dimension at most 256, multiples of 8: {query.shape[-1]}")
    for one in (starts_q, starts_k):
        if one.dtype != torch.int32 or not one.is_contiguous():
            raise RuntimeError("cu_seqlens must have dtype int32 and be contiguous")
    if len(starts_q) != len(starts_k) or len(starts_q) < 2:
        raise RuntimeError("batch size must be positive")
    bounds_q, bounds_k = starts_q.host.tolist(), starts_k.host.tolist()
    for bounds, tokens, longest in ((bounds_q, query, max_q), (bounds_k, key, max_k)):
        lengths = [last - first for first, last in pairwise(bounds)]
        if bounds[0] != 0 or bounds[-1] != len(tokens) or min(lengths) < 0:
            raise RuntimeError(f"cu_seqlens {bounds[0]} … {bounds[-1]} are not those of {len(tokens)} tokens")
        if max(lengths) > longest:
            raise RuntimeError(f"the longest text has {max(lengths)} tokens, and max_seqlen is {longest}")
    return [(slice(*q), slice(*k)) for q, k in zip(pairwise(bounds_q), pairwise(bounds_k), strict=True)]


def _window_bias(queries: int, keys: int, causal: bool, window: Any) -> Tensor | None:
    """Additive mask of a window: 0 inside, −∞ outside; the last query is aligned with the last key."""
    left, right = window or (-1, -1)
    right = 0 if causal else right
    if left < 0 and right < 0:
        return None
    apart = torch.arange(keys) - (torch.arange(queries)[:, None] + keys - queries)
    far = torch.zeros(apart.shape, dtype=torch.bool)
    far = far | (apart < -left) if left >= 0 else far
    far = far | (apart > right) if right >= 0 else far
    return torch.zeros(apart.shape).masked_fill(far, float("-inf"))


def _text_dropout(query: Tensor, key: Tensor, p: float, seed: int) -> Tensor | None:
    """`dropout_mask` of a text: that of all tokens [heads, L, M] from a seed that differs between texts."""
    return dropout_mask(torch.Size((len(query), query.shape[1], key.shape[1])), p, seed)


@handler_for("_flash_attention_forward")
def _packed_flash(
    func: Any, query: Any, key: Any, value: Any, starts_q: Any, starts_k: Any, max_q: int, max_k: int, dropout_p: float, is_causal: bool,
    debug: bool, *, scale: float | None = None, window_size_left: int | None = None, window_size_right: int | None = None, **others: Any,
) -> Any:  # fmt: skip
    if starts_q is None or starts_k is None or query.shape[1] != key.shape[1] or any(one is not None for one in others.values()):
        raise NotSimulated("_flash_attention_forward of a padded batch, with groups of heads or pages of keys")
    parts = _text_slices(query, key, value, starts_q, starts_k, max_q, max_k)
    card, window = query.device.index, tuple(-1 if one is None else one for one in (window_size_left, window_size_right))
    q, k, v = (one.transpose(0, 1) for one in to_accumulation_dtype(query, key, value))  # [heads, T, width]
    out, seed = torch.zeros_like(q), draw_seed(card, dropout_p)
    for number, (one, other) in enumerate(parts):
        near = _window_bias(one.stop - one.start, other.stop - other.start, is_causal, window)
        kept = _text_dropout(q[:, one], k[:, other], dropout_p, int(seed) + number)
        out[:, one] = attend(q[:, one], k[:, other], v[:, other], near, scale or q.shape[-1] ** -0.5, kept)
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
    parts = _text_slices(query, key, value, starts_q, starts_k, max_q, max_k)
    window = tuple(-1 if one is None else one for one in (window_size_left, window_size_right))
    g, q, k, v = (one.transpose(0, 1) for one in to_accumulation_dtype(gradient, query, key, value))
    gradients = [torch.zeros_like(one) for one in (q, k, v)]
    for number, (one, other) in enumerate(parts):
        near = _window_bias(one.stop - one.start, other.stop - other.start, is_causal, window)
        kept = _text_dropout(q[:, one], k[:, other], dropout_p, int(state.host[0]) + number)
        *own, _ = attention_gradients(g[:, one], q[:, one], k[:, other], v[:, other], near, scale or q.shape[-1] ** -0.5, kept)
        for target, rows, part in zip(gradients, (one, other, other), own, strict=True):
            target[:, rows] = part
    active_machine().launch("_flash_attention_backward", 3, count=3)
    return tuple(DeviceTensor(one.transpose(0, 1).contiguous().to(query.dtype), query.device.index) for one in gradients)


@handler_for("_grouped_mm")
def _grouped(func: Any, left: Any, right: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> Tensor:
    card = require_one_card("_grouped_mm", left, right, offs, bias)
    if left.dtype != right.dtype or not left.is_floating_point():
        raise RuntimeError("grouped_mm: expected factors of one floating-point format")
    if offs is None and (left.dim() == 2 or right.dim() == 2):
        raise RuntimeError("Have to provide offsets if there is a 2d matrix")
    if offs is not None and (offs.dtype != torch.int32 or offs.dim() != 1):
        raise RuntimeError("Offsets have to be int32, one for each group")
    for one in (left, right):
        steps, bytes_ = one.stride(), 16 // one.element_size()
        if 1 not in steps[-2:] or (max(steps[-2:]) % bytes_ and min(one.shape[-2:]) > 1):
            raise RuntimeError(f"expected strides of a multiple of 16 bytes, found {steps} of {one.dtype}")
    groups = 1 if offs is None else len(offs)
    out = _host_groups(left.host, right.host, None if offs is None else offs.host.tolist())
    if left.dtype == torch.bfloat16 and active_machine().capability[0] in (9, 10):
        active_machine().launch("_grouped_mm")
    else:  # group by group, with offsets copied to the host
        active_machine().wait("_grouped_mm without a kernel")
        active_machine().launch("_grouped_mm by groups", groups, count=groups)
    return DeviceTensor(out.to(out_dtype or left.dtype), card)


def _host_groups(left: Tensor, right: Tensor, ends: list[int] | None) -> Tensor:
    """Grouped products in float32 in the four forms: over rows [T, K] × [G, K, N], over the inner dimension [M, T] × [T, N], …"""
    left, right = left.float(), right.float()
    if ends is None:
        return left @ right
    parts = list(zip([0, *ends], ends))
    if left.dim() == 2 and right.dim() == 2:
        return torch.stack([left[:, first:last] @ right[first:last] for first, last in parts])
    if left.dim() == 2:
        out = left.new_full((len(left), right.shape[-1]), float("nan"))  # rows after the last group are not written
        for number, (first, last) in enumerate(parts):
            out[first:last] = left[first:last] @ right[number]
        return out
    out = left.new_full((left.shape[1], right.shape[-1]), float("nan"))
    for number, (first, last) in enumerate(parts):
        out[:, first:last] = left[number] @ right[:, first:last]
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
