"""Grouped linear layers: each row is mapped by one of several experts, without a host sync for the number of rows per expert."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

GROUPED_MM_CAPABILITIES = (9, 10)  # major compute capabilities: Hopper and Blackwell
ROW_ALIGNMENT = 8  # rows: a group starts at a multiple of 16 bytes of bfloat16, also when a gradient reads it column by column


@dataclass(frozen=True)
class ExpertGroups:
    """n rows grouped by the expert (of E) that each chose: `slots` [n] is the index of each row in a buffer of `size` rows in which the
    rows of one expert are contiguous; `ends` int32 [E] are the ends of the experts' rows. All on the device; `size` is an upper bound."""

    choice: Tensor
    slots: Tensor
    ends: Tensor
    size: int

    @classmethod
    def from_choice(cls, choice: Tensor, experts: int) -> "ExpertGroups":
        """choice [n]: the expert of each row.

        >>> groups = ExpertGroups.from_choice(torch.tensor([1, 0, 1]), 2)
        >>> groups.slots.tolist(), groups.ends.tolist()
        ([8, 0, 9], [8, 16])
        >>> ExpertGroups.from_choice(torch.tensor([1, 1]), 2).ends.tolist()
        [8, 16]
        """
        ranks = (choice[:, None] == torch.arange(experts, device=choice.device)).long().cumsum(0)  # [n, E], from 1
        counts = ranks[-1].clamp_min(1)  # on capability 10 torch leaves the gradient of an empty group undefined (pytorch #172439)
        padded_counts = (counts + ROW_ALIGNMENT - 1) // ROW_ALIGNMENT * ROW_ALIGNMENT
        ends = padded_counts.cumsum(0)
        slots = (ends - padded_counts).index_select(0, choice) + ranks.gather(1, choice[:, None])[:, 0] - 1
        return cls(choice, slots, ends.int(), len(choice) + experts * ROW_ALIGNMENT)


def grouped_linear(rows: Tensor, weights: Tensor, biases: Tensor | None, groups: ExpertGroups) -> Tensor:
    """Multiply each row by the weights of its expert and add the bias: rows [n, K], weights [E, N, K], biases [E, N] -> [n, N] in bfloat16.

    Rows and weights are cast to bfloat16; products accumulate in float32.
    """
    with torch.autocast(rows.device.type, enabled=False):
        buffer = rows.new_zeros(groups.size, rows.shape[1], dtype=torch.bfloat16).index_copy_(0, groups.slots, rows.bfloat16())
        products = F.grouped_mm(buffer, weights.bfloat16().mT, offs=groups.ends)
        outputs = products.index_select(0, groups.slots)
        return outputs if biases is None else outputs + F.embedding(groups.choice, biases.bfloat16())


def supports_grouped_linear(rows: Tensor, width: int) -> bool:
    """Whether grouped products run without a host sync: on CUDA of compute capability 9 or 10 (elsewhere torch copies the group lengths to
    the host and multiplies one by one), under bfloat16 autocast, for aligned widths."""
    if not rows.is_cuda or not torch.is_autocast_enabled("cuda") or torch.get_autocast_dtype("cuda") != torch.bfloat16:
        return False
    if torch.__version__ < "2.10":  # without grouped_mm
        return False
    is_aligned = rows.shape[-1] % ROW_ALIGNMENT == width % ROW_ALIGNMENT == 0
    return is_aligned and torch.cuda.get_device_capability(rows.device)[0] in GROUPED_MM_CAPABILITIES
