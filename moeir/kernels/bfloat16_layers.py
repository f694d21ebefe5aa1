"""A training step in bfloat16 on a CPU, with what surrounds its matrix products in few passes over memory.

On processors with fast products (AMX) torch's own dropout, GELU, normalisation, and attention with dropout take three quarters of a step.
The formulas are those of `backbones.layers`; random numbers are others than torch's, and states stay in bfloat16 between the products.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from moeir.kernels.attention import PackedLayout, TextGroup
from moeir.kernels.precision import product_dtype

LENGTH_MULTIPLE = 16  # of padded texts: rows of a tile of AMX
WIDTH_MULTIPLE = 4  # of heads, which are copied 64 bits at a time
LONGEST_WITHOUT_DROPOUT = 256  # tokens
SHORTEST_FOR_INFERENCE = 24  # tokens: below, torch's attention has less to set up
LOG2_E = 1.4426950408889634


def supports_bfloat16_layers(states: Tensor) -> bool:
    """Whether states, or the products of states, are in bfloat16 on a CPU, outside of `torch.compile`."""
    in_bfloat16 = states.dtype == torch.bfloat16 or product_dtype(states) == torch.bfloat16
    return in_bfloat16 and not states.is_cuda and not torch.compiler.is_compiling()


DropoutChoice = tuple[np.ndarray, np.uint32, np.float32]  # two seeds, threshold and scale, as the loops take them


def _choose(rate: float) -> DropoutChoice:
    """What is dropped with probability `rate`, by torch's generator."""
    seeds = torch.randint(0, 1 << 32, (2,)).numpy().astype(np.uint32) if rate else np.zeros(2, np.uint32)
    return seeds, np.uint32(min(round(rate * 2**32), 2**32 - 1)), np.float32(1 / (1 - rate) if rate < 1 else 0)


def as_bits(tensor: Tensor) -> np.ndarray:
    """The memory of a contiguous tensor in bfloat16, as uint16."""
    bits: np.ndarray = tensor.detach().view(torch.uint16).numpy()
    return bits


def _as_numbers(weight: Tensor) -> np.ndarray:
    numbers: np.ndarray = weight.detach().float().numpy()
    return numbers


def _loops() -> Any:
    from moeir.kernels import bfloat16_loops  # imports numba, which only a CPU needs

    return bfloat16_loops


def _run(loop: Callable[..., None], count: int, *arguments: Any) -> None:
    """Run a loop over `count` things, on as many threads as torch has."""
    threads = min(torch.get_num_threads(), count)
    if threads <= 1:
        loop(0, count, *arguments)
        return
    edges = [count * part // threads for part in range(threads + 1)]
    for done in [_thread_pool().submit(loop, first, last, *arguments) for first, last in pairwise(edges)]:
        done.result()


@cache
def _thread_pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(thread_name_prefix="bfloat16-loops")


class _Drop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, rate: float) -> Tensor:
        ctx.choice = _choose(rate)
        return _drop(states, ctx.choice)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _drop(gradients[0], ctx.choice), None


def _drop(states: Tensor, choice: DropoutChoice) -> Tensor:
    states = states.to(torch.bfloat16).contiguous()
    outputs = torch.empty_like(states)
    _run(_loops().drop_elements, states.numel(), as_bits(states).ravel(), *choice, as_bits(outputs).ravel())
    return outputs


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, update: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, epsilon: float, rate: float) -> Tensor:
        update, residual = (part.to(torch.bfloat16).contiguous() for part in (update, residual))
        ctx.choice, ctx.statistics = _choose(rate), np.empty((2, len(update)), np.float32)
        total, out = torch.empty_like(update), torch.empty_like(update)
        affine = _as_numbers(weight), _as_numbers(bias), np.float32(epsilon)
        results = as_bits(total), as_bits(out), ctx.statistics
        _run(_loops().add_norm_rows, len(update), as_bits(update), as_bits(residual), *affine, *ctx.choice, *results)
        ctx.save_for_backward(total, weight)
        return out

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, None, None]:
        total, weight = ctx.saved_tensors
        gradient = gradients[0].to(torch.bfloat16).contiguous()
        residual, (_, threshold, _) = torch.empty_like(total), ctx.choice
        update = torch.empty_like(total) if threshold else residual
        of_weights = np.zeros((_loops().BLOCKS, 2, total.shape[1]), np.float32)
        inputs = as_bits(gradient), as_bits(total), ctx.statistics, _as_numbers(weight)
        results = as_bits(update), as_bits(residual), of_weights
        _run(_loops().add_norm_backward, len(of_weights), *inputs, *ctx.choice, *results)
        of_weight, of_bias = torch.from_numpy(of_weights.sum(0)).to(weight.dtype)
        return update, residual, of_weight, of_bias, None, None


class _Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor) -> Tensor:
        states = states.to(torch.bfloat16).contiguous()
        ctx.save_for_backward(states)
        activated = torch.empty_like(states)
        _run(_loops().gelu_elements, states.numel(), as_bits(states).ravel(), as_bits(activated).ravel())
        return activated

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (states,) = ctx.saved_tensors
        gradient, out = gradients[0].to(torch.bfloat16).contiguous(), torch.empty_like(states)
        _run(_loops().gelu_backward, states.numel(), *(as_bits(part).ravel() for part in (gradient, states, out)))
        return out


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, joint: Tensor, layout: PackedLayout, heads: int, rate: float) -> Tensor:
        hidden, groups, saved = joint.shape[1] // 3, layout.padded_groups(LENGTH_MULTIPLE), []
        factor = np.float32(LOG2_E / (hidden // heads) ** 0.5)
        mixed = joint.new_empty(len(joint), hidden)
        for group in groups:
            parts = _pad_heads(joint, 3, heads, group)
            probabilities = torch.bmm(parts[0], parts[1].transpose(1, 2))
            outputs = torch.empty_like(probabilities) if rate else probabilities
            inputs = as_bits(probabilities), group[1], heads, factor
            _run(_loops().softmax_dropout, len(probabilities), *inputs, *_choose(rate), as_bits(outputs))
            _unpad_heads(torch.bmm(outputs, parts[2])[None], heads, group, mixed)
            saved += [parts, probabilities]
        ctx.save_for_backward(*saved)
        ctx.groups, ctx.heads, ctx.rate = groups, heads, rate
        return mixed

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        gradient, heads = gradients[0].to(torch.bfloat16).contiguous(), ctx.heads
        factor, scale = np.float32((gradient.shape[1] // heads) ** -0.5), np.float32(1 / (1 - ctx.rate) if ctx.rate < 1 else 0)
        joint, saved = gradient.new_empty(len(gradient), 3 * gradient.shape[1]), ctx.saved_tensors
        for group, parts, probabilities in zip(ctx.groups, saved[::2], saved[1::2], strict=True):
            (mixed,) = _pad_heads(gradient, 1, heads, group)
            outputs = probabilities
            if ctx.rate:
                outputs = torch.empty_like(probabilities)
                _run(_loops().drop_marked, outputs.numel(), as_bits(probabilities).ravel(), scale, as_bits(outputs).ravel())
            scores, changes = torch.bmm(mixed, parts[2].transpose(1, 2)), torch.empty_like(parts)
            _run(_loops().softmax_backward, len(scores), as_bits(probabilities), factor, scale, as_bits(scores))
            torch.bmm(scores, parts[1], out=changes[0])
            torch.bmm(scores.transpose(1, 2), parts[0], out=changes[1])
            torch.bmm(outputs.transpose(1, 2), mixed, out=changes[2])
            _unpad_heads(changes, heads, group, joint)
        return joint, None, None, None


def _pad_heads(joint: Tensor, parts: int, heads: int, group: TextGroup) -> Tensor:
    """[T, parts · heads · width] -> [parts, n · heads, L, width] of the n texts of a group."""
    starts, lengths, longest = group
    joint = joint.to(torch.bfloat16).contiguous()
    batch = joint.new_empty(parts, len(starts) * heads, longest, joint.shape[1] // parts // heads)
    _run(_loops().pad_heads, len(starts), as_bits(joint).view(np.uint64), starts, lengths, heads, as_bits(batch).view(np.uint64))
    return batch


def _unpad_heads(batch: Tensor, heads: int, group: TextGroup, joint: Tensor) -> None:
    """The inverse of `_pad_heads`, into `joint`."""
    starts, lengths, _ = group
    _run(_loops().unpad_heads, len(starts), as_bits(batch).view(np.uint64), starts, lengths, heads, as_bits(joint).view(np.uint64))


def supports_inference_attention(joint: Tensor, layout: PackedLayout, width: int) -> bool:
    """Whether `inference_attention` can be used and pays."""
    return _fits(joint, layout, width) and layout.max_length >= SHORTEST_FOR_INFERENCE


def _fits(joint: Tensor, layout: PackedLayout, width: int) -> bool:
    fits = supports_bfloat16_layers(joint) and joint.dtype == torch.bfloat16 and width % WIDTH_MULTIPLE == 0
    return fits and layout.no_attend_mask is None


def inference_attention(joint: Tensor, layout: PackedLayout, heads: int) -> Tensor:
    """`joint_attention` without dropout and without a gradient: rows are normalised after their product with the values."""
    hidden = joint.shape[1] // 3
    mixed, factor = joint.new_empty(len(joint), hidden), np.float32(LOG2_E / (hidden // heads) ** 0.5)
    for group in layout.padded_groups(LENGTH_MULTIPLE):
        starts, lengths, _ = group
        query, key, value = _pad_heads(joint, 3, heads, group)
        powers = torch.bmm(query, key.transpose(1, 2))
        inverse = np.empty(powers.shape[:2], np.float32)
        _run(_loops().softmax_powers, len(powers), as_bits(powers), lengths, heads, factor, inverse)
        product = as_bits(torch.bmm(powers, value))
        _run(_loops().unpad_scaled, len(starts), product, inverse, starts, lengths, heads, as_bits(mixed))
    return mixed


def drop(states: Tensor, rate: float) -> Tensor:
    """Dropout of states, in bfloat16."""
    outputs: Tensor = _Drop.apply(states, rate)
    return outputs


def add_norm(update: Tensor, residual: Tensor, norm: torch.nn.LayerNorm, rate: float) -> Tensor:
    """norm(residual + dropout(update)), in bfloat16: [n, H] -> [n, H]."""
    normalized: Tensor = _AddNorm.apply(update, residual, norm.weight, norm.bias, norm.eps, rate)
    return normalized


def gelu(states: Tensor) -> Tensor:
    """x Φ(x), exact to 5e-5 before rounding to bfloat16."""
    activated: Tensor = _Gelu.apply(states)
    return activated


def supports_joint_attention(joint: Tensor, layout: PackedLayout, width: int, rate: float) -> bool:
    """Whether `joint_attention` can be used and pays: it keeps the weights of attention for their gradients, as torch does with dropout.

    Without dropout torch's attention recomputes them, which for long texts is as fast, and needs less memory.
    """
    return _fits(joint, layout, width) and (bool(rate) or layout.max_length <= LONGEST_WITHOUT_DROPOUT)


def joint_attention(joint: Tensor, layout: PackedLayout, heads: int, rate: float) -> Tensor:
    """Scaled dot-product attention within each text, weights dropped with probability `rate`: query, key and value of the heads
    [T, 3 · heads · width] in bfloat16 -> [T, heads · width]. All tokens are attended to.
    """
    mixed: Tensor = _Attention.apply(joint, layout, heads, rate)
    return mixed
