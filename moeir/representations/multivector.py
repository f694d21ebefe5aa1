"""One vector a token; similarity is late interaction: each query token finds its best document token (CAME eq. 5)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar, Self

import numpy as np
import torch
from scipy.cluster.hierarchy import linkage
from torch import Tensor

from moeir.kernels.late_interaction import late_interaction
from moeir.representations.base import Representation, cumulate, full_precision, spans


def maxsim(queries: Tensor, query_mask: Tensor, documents: Tensor, document_mask: Tensor) -> Tensor:
    """Late interaction: each query token finds its best document token.

    queries [Q, L, D], documents [N, M, D], masks true on real tokens -> [Q, N]. Khattab and Zaharia 2020, eq. 3. The plain form, which
    needs [Q, N, L, M] and more for its gradient; scores are computed by the kernel that does not.

    >>> q, d, yes = torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[-2.0, 0.0], [-3.0, 1.0]]]), torch.ones(1, 1, dtype=torch.bool)
    >>> maxsim(q, yes, d, torch.tensor([[True, False]])).item()
    -2.0
    """
    similarity = torch.einsum("qld,nmd->qnlm", queries, documents)
    similarity = similarity.masked_fill(~document_mask[None, :, None], float("-inf"))  # padding never wins
    best = similarity.amax(dim=-1).masked_fill(~query_mask[:, None], 0.0)  # [Q, N, L]
    return best.sum(dim=-1)


def clusters(points: np.ndarray, count: int) -> np.ndarray:
    """Which of `count` clusters each of the points [M, D] is in, int64 [M]: Ward's linkage, numbered by their first points.

    >>> clusters(np.array([[0.0], [5.0], [0.1], [5.2]]), 2).tolist()
    [0, 1, 0, 1]
    """
    if count == len(points):
        return np.arange(count)
    above = np.arange(2 * len(points))
    for number, (left, right) in enumerate(linkage(points, "ward")[: len(points) - count, :2].astype(int), len(points)):
        above[[left, right]] = number
    tops = np.arange(len(points))
    while (above[tops] != tops).any():
        tops = above[tops]
    _, firsts, own = np.unique(tops, return_index=True, return_inverse=True)
    places: np.ndarray = firsts.argsort().argsort()[own]
    return places


@dataclass(frozen=True)
class MultiVector(Representation):
    """Text b has vectors[starts[b]:starts[b+1]]. vectors [T, D], starts [B+1].

    No text has more than `longest` vectors; None: nobody knows without asking the device.
    """

    vectors: Tensor
    starts: Tensor
    longest: int | None = None
    kind: ClassVar[str] = "multivector"
    files: ClassVar[dict[str, str]] = {"vectors": "float16"}

    def __len__(self) -> int:
        return len(self.starts) - 1

    def padded(self) -> tuple[Tensor, Tensor]:
        """vectors [B, L, D] in float32 with zeros behind each text, and the mask [B, L] of real tokens."""
        lengths = self.starts[1:] - self.starts[:-1]
        longest = int(lengths.max()) if len(self) else 0
        places = self.starts[:-1, None] + torch.arange(longest, device=self.starts.device)
        mask = places < self.starts[1:, None]
        flat = self.vectors.float().index_select(0, torch.where(mask, places, 0).flatten())
        return flat.view(len(self), longest, -1) * mask[..., None], mask

    def scores(self, documents: Self) -> Tensor:
        with full_precision(self.vectors.device):
            return late_interaction(self.vectors.float(), self.starts, documents.vectors.float(), documents.starts, documents.longest)

    def paired(self, documents: Self) -> Tensor:
        rows = torch.arange(len(self), device=self.starts.device)
        pairs = [self.select(rows[i : i + 1]).scores(documents.select(rows[i : i + 1]))[0] for i in range(len(self))]
        return torch.cat(pairs) if pairs else self.vectors.new_zeros(0)

    def pooled(self, factor: int) -> Self:
        """Of M vectors of a text ⌈M / factor⌉: the means of its clusters, in the order of their first tokens (Clavié et al. 2024).

        Clusters are those of Ward's linkage of the vectors' directions; a mean stays as long as it is.
        """
        vectors, bounds = self.vectors.float().cpu(), self.starts.tolist()
        directions = torch.nn.functional.normalize(vectors).double().numpy()
        owners, fresh = [np.empty(0, np.int64)], [0]
        for first, last in pairwise(bounds):
            owners.append(clusters(directions[first:last], -(-(last - first) // factor)) + fresh[-1])
            fresh.append(fresh[-1] + -(-(last - first) // factor))
        owner = torch.from_numpy(np.concatenate(owners))
        sums = vectors.new_zeros(fresh[-1], vectors.shape[1]).index_add(0, owner, vectors)
        means = sums / torch.bincount(owner, minlength=fresh[-1])[:, None]
        return type(self)(means.to(self.vectors.device), torch.tensor(fresh, device=self.starts.device))

    def select(self, rows: Tensor, *, permutation: bool = False) -> Self:
        places, starts = spans(self.starts, rows, len(self.vectors) if permutation else None)
        return replace(self, vectors=self.vectors.index_select(0, places), starts=starts)

    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        return replace(self, vectors=change(self.vectors), starts=change(self.starts))

    def unbounded(self) -> Self:
        return replace(self, longest=None)

    def scaled(self, factor: float) -> Self:
        return replace(self, vectors=self.vectors * factor)

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        starts = cumulate(torch.cat([part.starts.diff() for part in parts]))
        bounds = [part.longest for part in parts]
        longest = None if None in bounds else max(bound for bound in bounds if bound is not None)
        return cls(torch.cat([part.vectors for part in parts]), starts, longest)

    def columns(self) -> dict[str, Tensor]:
        return {"vectors": self.vectors}

    def starts_of_rows(self) -> Tensor:
        return self.starts

    @classmethod
    def from_arrays(cls, arrays: dict[str, Tensor], starts: Tensor | None, facts: dict[str, int]) -> Self:
        assert starts is not None
        return cls(arrays["vectors"], starts)
