"""Output of a router for B texts: expert probabilities per text or per token; dispatch of rows to experts, and of adapters to rows."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Self, TypeAlias

import torch
from torch import Tensor

from moeir.backbones.config import MAX_EXPERTS
from moeir.errors import UsageError
from moeir.representations.base import ragged_positions

AdapterChoice: TypeAlias = tuple[int, ...] | Tensor
adapter_choice: ContextVar[tuple[AdapterChoice, int]] = ContextVar("what `choose_adapters` says, and for how many rows")


@contextmanager
def choose_adapters(choice: AdapterChoice, rows: int) -> Iterator[None]:
    """Let the adapted maps that run in this block, in this thread, take some experts for their `rows`: a tuple has the expert of each of as
    many equal blocks of neighbouring rows, a tensor [rows, E] the weight of every expert for each row."""
    token = adapter_choice.set((choice, rows))
    try:
        yield
    finally:
        adapter_choice.reset(token)


def check_expert_count(experts: int, minimum: int = 2) -> None:
    """UsageError unless the number of experts is `minimum` to 1024."""
    if not minimum <= experts <= MAX_EXPERTS:
        raise UsageError(f"experts={experts}: expected {minimum} to {MAX_EXPERTS}")


@dataclass(frozen=True)
class RouterOutput:
    """probabilities [n, E], without noise, with gradient; starts [B+1]: text b's decisions are the rows starts[b] to starts[b+1].

    The arg-max of a row is the expert that inference takes. With `top_k` it takes the sum of that many, weighted by their probabilities, as
    training does: the experts of a published encoder.
    """

    probabilities: Tensor
    starts: Tensor
    top_k: int | None = None

    @classmethod
    def from_text_probabilities(cls, probabilities: Tensor) -> Self:
        """One decision per text: probabilities [B, E]."""
        return cls(probabilities, torch.arange(len(probabilities) + 1, device=probabilities.device))

    @property
    def choices(self) -> Tensor:
        """[n, K] the experts that inference takes, constants; K is 1 without `top_k`."""
        probabilities = self.probabilities.detach()
        return probabilities.argmax(1, keepdim=True) if self.top_k is None else probabilities.topk(self.top_k).indices

    def __len__(self) -> int:
        return len(self.starts) - 1

    def select(self, rows: Tensor, *, permutation: bool = False) -> Self:
        """The texts `rows` [n], in that order; differentiable. A `permutation` of all texts needs no device synchronisation for sizes."""
        decisions, starts = ragged_positions(self.starts, rows, len(self.probabilities) if permutation else None)
        return replace(self, probabilities=self.probabilities.index_select(0, decisions), starts=starts)

    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        """A copy with `change` applied to every tensor (device, detach)."""
        return replace(self, probabilities=change(self.probabilities), starts=change(self.starts))

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        """Outputs of several batches end to end."""
        shifts = accumulate((len(part.probabilities) for part in parts), initial=0)
        starts = [part.starts[int(number > 0) :] + shift for number, (part, shift) in enumerate(zip(parts, shifts, strict=False))]
        return cls(torch.cat([part.probabilities for part in parts]), torch.cat(starts), parts[0].top_k)


def dispatch_to_experts(states: Tensor, choice: Tensor, experts: int, apply: Callable[[int, Tensor, Tensor | None], Tensor]) -> Tensor:
    """Each row through its chosen expert, rows grouped by expert, so that E experts cost as much as one.

    states [n, H], choice [n] -> [n, D] in the order of the rows. `apply(expert, states of its rows, its rows)`; rows None means all.
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
