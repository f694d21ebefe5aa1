"""What a router said of B texts: the probability of each of its experts, for each text or for each token."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Self

import torch
from torch import Tensor

from moeir.errors import UsageError
from moeir.representations.base import spans

MOST_EXPERTS = 1024


def check_experts(experts: int) -> None:
    """UsageError for a number of experts among which there is nothing to choose, or more than anybody means."""
    if not 2 <= experts <= MOST_EXPERTS:
        raise UsageError(f"experts={experts}: expected 2 to {MOST_EXPERTS}")


@dataclass(frozen=True)
class Routing:
    """probabilities [n, I], without noise, with gradient; starts [B+1]: text b's decisions are the rows starts[b] to starts[b+1].

    The arg-max of a row is the expert that inference takes.
    """

    probabilities: Tensor
    starts: Tensor

    @classmethod
    def of_texts(cls, probabilities: Tensor) -> Self:
        """One decision a text: probabilities [B, I]."""
        return cls(probabilities, torch.arange(len(probabilities) + 1, device=probabilities.device))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def select(self, rows: Tensor, *, permutation: bool = False) -> Self:
        """The texts `rows` [n], in that order; differentiable. Of a `permutation` of all texts the device is not asked how much it is."""
        decisions, starts = spans(self.starts, rows, len(self.probabilities) if permutation else None)
        return type(self)(self.probabilities.index_select(0, decisions), starts)

    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        """The same with every tensor changed (device, detach)."""
        return type(self)(change(self.probabilities), change(self.starts))

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        """Texts of several batches end to end."""
        shifts = accumulate((len(part.probabilities) for part in parts), initial=0)
        starts = [part.starts[int(number > 0) :] + shift for number, (part, shift) in enumerate(zip(parts, shifts, strict=False))]
        return cls(torch.cat([part.probabilities for part in parts]), torch.cat(starts))


def by_expert(states: Tensor, choice: Tensor, experts: int, apply: Callable[[int, Tensor, Tensor | None], Tensor]) -> Tensor:
    """Each row through the expert it chose, rows of one expert together, so that I experts cost what one costs.

    states [n, H], choice [n] -> [n, D] in the order of the rows. `apply(expert, states of its rows, its rows)`; rows None are all of them.
    """
    counts = torch.bincount(choice, minlength=experts).tolist()
    if max(counts) == len(states):
        return apply(counts.index(len(states)), states, None)
    order = torch.argsort(choice, stable=True)
    inputs = states.index_select(0, order).split(counts)
    rows = order.split(counts)
    parts = [apply(expert, inputs[expert], rows[expert]) for expert in range(experts) if counts[expert]]
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(len(order), device=order.device)
    return torch.cat(parts).index_select(0, inverse)
