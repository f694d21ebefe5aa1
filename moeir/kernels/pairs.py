"""Inner products of chosen pairs of rows, and weighted sums of chosen rows: neither ever keeps [pairs, H].

Sums go through torch's bag of embeddings, pair after pair in order: the same bytes on any number of threads, on CUDA too.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

BYTES_AT_ONCE = {"cpu": 1 << 18, "cuda": 1 << 26}  # of rows on either side; on a processor half of it stays in the cache of a core


def products(left: Tensor, right: Tensor, left_rows: Tensor, right_rows: Tensor) -> Tensor:
    """Row left_rows[i] of left times row right_rows[i] of right: left [m, H], right [n, H] -> [pairs], with gradient.

    >>> products(torch.eye(2), torch.tensor([[3.0, 4.0]]), torch.tensor([0, 1]), torch.tensor([0, 0]))
    tensor([3., 4.])
    """
    found: Tensor = _Chosen.apply(left, right, left_rows, right_rows)
    return found


def bags(table: Tensor, rows: Tensor, weights: Tensor, owners: Tensor, count: int) -> Tensor:
    """Σ of weights[i] · table[rows[i]] over the pairs i of each of `count` owners: table [n, H] -> [count, H]; owners in any order.

    >>> bags(torch.eye(2), torch.tensor([0, 1, 1]), torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2, 0, 2]), 3)
    tensor([[0., 2.],
            [0., 0.],
            [1., 3.]])
    """
    ordered, places = owners.int().sort(stable=True)
    begins = torch.searchsorted(ordered, torch.arange(count, dtype=torch.int32, device=owners.device), out_int32=True)
    return F.embedding_bag(rows.int()[places], table, begins, mode="sum", per_sample_weights=weights[places])


class _Chosen(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor, left_rows: Tensor, right_rows: Tensor) -> Tensor:
        ctx.save_for_backward(left, right, left_rows, right_rows)
        step = max(1, BYTES_AT_ONCE[left.device.type] // (left.shape[1] * left.element_size()))
        found = left.new_empty(len(left_rows))
        room = left.new_empty(2, min(step, len(left_rows)), left.shape[1])  # made once: memory asked for anew costs more than the products
        parts = (column.split(step) for column in (found, left_rows, right_rows))
        for part, one, other in zip(*parts, strict=True):
            factors = (torch.index_select(table, 0, rows, out=room[side, : len(rows)])
                       for side, (table, rows) in enumerate(((left, one), (right, other))))  # fmt: skip
            torch.sum(next(factors).mul_(next(factors)), -1, out=part)
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        left, right, left_rows, right_rows = ctx.saved_tensors
        for_left = bags(right, right_rows, gradients[0], left_rows, len(left)) if ctx.needs_input_grad[0] else None
        for_right = bags(left, left_rows, gradients[0], right_rows, len(right)) if ctx.needs_input_grad[1] else None
        return for_left, for_right, None, None
