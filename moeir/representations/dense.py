"""One vector per text; similarity is the inner product (CAME eq. 6)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from moeir.representations.base import Representation, float32_scores


@dataclass(frozen=True)
class Dense(Representation):
    """vectors [B, D]."""

    vectors: Tensor
    kind: ClassVar[str] = "dense"
    files: ClassVar[dict[str, str]] = {"vectors": "float16"}

    def __len__(self) -> int:
        return len(self.vectors)

    def scores(self, documents: Self) -> Tensor:
        with float32_scores(self.vectors.device):
            return self.vectors.float() @ documents.vectors.float().T

    def score_pairs(self, documents: Self) -> Tensor:
        return (self.vectors.float() * documents.vectors.float()).sum(-1)

    def select(self, rows: Tensor, *, permutation: bool = False) -> Self:
        return type(self)(self.vectors.index_select(0, rows))

    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        return type(self)(change(self.vectors))

    def scale(self, factor: float) -> Self:
        return type(self)(self.vectors * factor)

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        return cls(torch.cat([part.vectors for part in parts]))

    def columns(self) -> dict[str, Tensor]:
        return {"vectors": self.vectors}

    @classmethod
    def from_arrays(cls, arrays: dict[str, Tensor], starts: Tensor | None, metadata: dict[str, int]) -> Self:
        return cls(arrays["vectors"])
