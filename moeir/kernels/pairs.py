"""Inner products of chosen pairs of rows, a few pairs at a time in both directions: [pairs, H] is never kept for the gradient."""

from typing import Any

import torch
from torch import Tensor

PAIRS_AT_ONCE = 2048  # [2048, 768] in float32 is 6 MB: stays near the processor


def products(left: Tensor, right: Tensor, left_rows: Tensor, right_rows: Tensor) -> Tensor:
    """Row left_rows[i] of left times row right_rows[i] of right: left [m, H], right [n, H] -> [pairs], with gradient.

    >>> products(torch.eye(2), torch.tensor([[3.0, 4.0]]), torch.tensor([0, 1]), torch.tensor([0, 0]))
    tensor([3., 4.])
    """
    found: Tensor = _Chosen.apply(left, right, left_rows, right_rows)
    return found


class _Chosen(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor, left_rows: Tensor, right_rows: Tensor) -> Tensor:
        ctx.save_for_backward(left, right, left_rows, right_rows)
        parts = zip(left_rows.split(PAIRS_AT_ONCE), right_rows.split(PAIRS_AT_ONCE), strict=True)
        return torch.cat([(left.index_select(0, one) * right.index_select(0, other)).sum(-1) for one, other in parts])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        left, right, left_rows, right_rows = ctx.saved_tensors
        for_left, for_right = torch.zeros_like(left), torch.zeros_like(right)
        parts = (column.split(PAIRS_AT_ONCE) for column in (left_rows, right_rows, gradients[0][:, None]))
        for one, other, weight in zip(*parts, strict=True):
            for_left.index_add_(0, one, weight * right.index_select(0, other))
            for_right.index_add_(0, other, weight * left.index_select(0, one))
        return for_left, for_right, None, None
