"""Dot products of selected pairs of rows, and weighted sums of selected rows, without materialising [pairs, H].

Sums use torch's embedding_bag, pair after pair in order: the same bytes on any number of threads, on CUDA too.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

BYTES_AT_ONCE = {"cpu": 1 << 18, "cuda": 1 << 26}  # of rows on either side; on a CPU half of it fits the cache of a core


def gather_dot(left: Tensor, right: Tensor, left_rows: Tensor, right_rows: Tensor) -> Tensor:
    """Dot products of row left_rows[i] of left and row right_rows[i] of right: left [m, H], right [n, H] -> [pairs], with gradient.

    >>> gather_dot(torch.eye(2), torch.tensor([[3.0, 4.0]]), torch.tensor([0, 1]), torch.tensor([0, 0]))
    tensor([3., 4.])
    """
    dots: Tensor = _GatherDot.apply(left, right, left_rows, right_rows)
    return dots


def segment_weighted_sum(table: Tensor, rows: Tensor, weights: Tensor, segments: Tensor, count: int) -> Tensor:
    """Σ of weights[i] · table[rows[i]] over the pairs i of each of `count` segments: table [n, H] -> [count, H]; segments in any order.

    >>> segment_weighted_sum(torch.eye(2), torch.tensor([0, 1, 1]), torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2, 0, 2]), 3)
    tensor([[0., 2.],
            [0., 0.],
            [1., 3.]])
    """
    ordered, order = segments.int().sort(stable=True)
    starts = torch.searchsorted(ordered, torch.arange(count, dtype=torch.int32, device=segments.device), out_int32=True)
    return F.embedding_bag(rows.int()[order], table, starts, mode="sum", per_sample_weights=weights[order])


class _GatherDot(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor, left_rows: Tensor, right_rows: Tensor) -> Tensor:
        ctx.save_for_backward(left, right, left_rows, right_rows)
        step = max(1, BYTES_AT_ONCE[left.device.type] // (left.shape[1] * left.element_size()))
        dots = left.new_empty(len(left_rows))
        buffer = left.new_empty(2, min(step, len(left_rows)), left.shape[1])  # allocated once: allocation costs more than the products
        parts = (column.split(step) for column in (dots, left_rows, right_rows))
        for part, left_block, right_block in zip(*parts, strict=True):
            factors = (torch.index_select(table, 0, rows, out=buffer[side, : len(rows)])
                       for side, (table, rows) in enumerate(((left, left_block), (right, right_block))))  # fmt: skip
            torch.sum(next(factors).mul_(next(factors)), -1, out=part)
        return dots

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        left, right, left_rows, right_rows = ctx.saved_tensors
        left_gradient = segment_weighted_sum(right, right_rows, gradients[0], left_rows, len(left)) if ctx.needs_input_grad[0] else None
        right_gradient = segment_weighted_sum(left, left_rows, gradients[0], right_rows, len(right)) if ctx.needs_input_grad[1] else None
        return left_gradient, right_gradient, None, None
