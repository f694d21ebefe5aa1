"""Rows that go through one of several linear maps each, without asking the device how many go through which."""

from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

ALIGNED = 8  # rows: a group begins where 16 bytes of bfloat16 do, also where a gradient reads it down its columns


@dataclass(frozen=True)
class ExpertGroups:
    """n rows by the one of I experts that each chose: `slots` [n] is the place of each in a buffer of `size` rows, in which the rows of one
    expert are neighbours; `ends` int32 [I] are where each expert's rows end. All on the device; `size` is the most it can take."""

    choice: Tensor
    slots: Tensor
    ends: Tensor
    size: int

    @classmethod
    def from_choice(cls, choice: Tensor, experts: int) -> "ExpertGroups":
        """choice [n], which expert each row takes.

        >>> groups = ExpertGroups.from_choice(torch.tensor([1, 0, 1]), 2)
        >>> groups.slots.tolist(), groups.ends.tolist()
        ([8, 0, 9], [8, 16])
        """
        ranks = (choice[:, None] == torch.arange(experts, device=choice.device)).long().cumsum(0)  # [n, I], from 1
        padded = (ranks[-1] + ALIGNED - 1) // ALIGNED * ALIGNED
        ends = padded.cumsum(0)
        slots = (ends - padded).index_select(0, choice) + ranks.gather(1, choice[:, None])[:, 0] - 1
        return cls(choice, slots, ends.int(), len(choice) + experts * ALIGNED)


def grouped_linear(rows: Tensor, weights: Tensor, biases: Tensor | None, groups: ExpertGroups) -> Tensor:
    """Each row times the weights of its expert, plus its bias: rows [n, K], weights [I, N, K], biases [I, N] -> [n, N] in bfloat16.

    Products are added up in float32; rows and weights are taken as bfloat16.
    """
    with torch.autocast(rows.device.type, enabled=False):
        buffer = rows.new_zeros(groups.size, rows.shape[1], dtype=torch.bfloat16).index_copy_(0, groups.slots, rows.bfloat16())
        products = _Contiguous.apply(F.grouped_mm(buffer, weights.bfloat16().mT, offs=groups.ends))
        picked = products.index_select(0, groups.slots)
        return picked if biases is None else picked + F.embedding(groups.choice, biases.bfloat16())


class _Contiguous(torch.autograd.Function):
    """The same numbers; the gradient lies in memory row by row, as a grouped product reads it."""

    @staticmethod
    def forward(ctx: object, products: Tensor) -> Tensor:
        return products.view_as(products)

    @staticmethod
    def backward(ctx: object, *gradients: Tensor) -> Tensor:
        return gradients[0].contiguous()


@cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


def has_grouped_linear(rows: Tensor, width: int) -> bool:
    """Whether grouped products are to be had: on CUDA of compute capability 8.0 or more, under bfloat16 autocast, of widths that align."""
    if not rows.is_cuda or not torch.is_autocast_enabled("cuda") or torch.get_autocast_dtype("cuda") != torch.bfloat16:
        return False
    return rows.shape[-1] % ALIGNED == 0 and width % ALIGNED == 0 and _capability(rows.device) >= (8, 0)
