"""One vector per text; similarity is the inner product (CAME eq. 6)."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from torch import Tensor

from moeir.kernels.precision import full_precision, normalize
from moeir.representations.base import Representation


@dataclass(frozen=True)
class Dense(Representation):
    """vectors [B, D]."""

    vectors: Tensor
    kind: ClassVar[str] = "dense"
    files: ClassVar[dict[str, str]] = {"vectors": "float16"}
    default_engine: ClassVar[str] = "flat"
    exported_as: ClassVar[str | None] = "dense"

    def scores(self, documents: Self) -> Tensor:
        with full_precision(self.vectors.device):
            return self.vectors.float() @ documents.vectors.float().T

    def score_pairs(self, documents: Self) -> Tensor:
        return (self.vectors.float() * documents.vectors.float()).sum(-1)

    def truncate(self, dimension: int, *, normalise: bool) -> Self:
        """The first `dimension` numbers of every vector; with `normalise`, for vectors that are, as long as the whole vector was."""
        vectors = self.vectors[:, :dimension]
        if normalise:
            vectors = normalize(vectors) * self.vectors.norm(dim=-1, keepdim=True).detach()
        return replace(self, vectors=vectors)

    def export_row(self, row: int) -> Any:
        return self.vectors[row].numpy()
