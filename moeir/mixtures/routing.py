"""What a router said of B texts: the probability of each of its experts, for each text or for each token."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from moeir.representations.base import spans


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

    def select(self, rows: Tensor) -> Self:
        """The texts `rows` [n], in that order; differentiable."""
        places, starts = spans(self.starts, rows)
        return type(self)(self.probabilities.index_select(0, places), starts)

    def to(self, device: torch.device | str) -> Self:
        """The same on a device."""
        return type(self)(self.probabilities.to(device), self.starts.to(device))

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        """Texts of several batches end to end."""
        shifts = [0, *torch.tensor([int(part.starts[-1]) for part in parts]).cumsum(0).tolist()]
        starts = [part.starts[int(number > 0) :] + shift for number, (part, shift) in enumerate(zip(parts, shifts, strict=False))]
        return cls(torch.cat([part.probabilities for part in parts]), torch.cat(starts))
