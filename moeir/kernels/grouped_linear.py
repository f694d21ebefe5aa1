"""Rows that go through one of several linear maps each, without asking the device how many go through which."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

GROUPED = (9, 10)  # compute capabilities, Hopper and Blackwell
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
        products = F.grouped_mm(buffer, weights.bfloat16().mT, offs=groups.ends)
        picked = products.index_select(0, groups.slots)
        return picked if biases is None else picked + F.embedding(groups.choice, biases.bfloat16())


@cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


def has_grouped_linear(rows: Tensor, width: int) -> bool:
    """Whether grouped products are to be had without a wait: on CUDA of compute capability 9 or 10 (elsewhere torch asks for the lengths of
    the groups and multiplies one by one), under bfloat16 autocast, of widths that align."""
    if not rows.is_cuda or not torch.is_autocast_enabled("cuda") or torch.get_autocast_dtype("cuda") != torch.bfloat16:
        return False
    return rows.shape[-1] % ALIGNED == 0 and width % ALIGNED == 0 and _capability(rows.device)[0] in GROUPED


def grouped_flops() -> dict[Any, Any]:
    """For torch's counter of operations: grouped products by their shapes, [n, K] × [I, K, N] or [K, n] × [n, N]."""

    def count(first: Sequence[int], second: Sequence[int], *rest: Any, **more: Any) -> int:
        return 2 * first[0] * first[1] * second[-1]

    return {torch.ops.aten._grouped_mm: count}
