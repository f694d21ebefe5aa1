"""One vector per text; similarity is the inner product (CAME eq. 6)."""

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from torch import Tensor

from moeir.kernels.precision import full_precision
from moeir.representations.base import Representation
from moeir.representations.row_checks import Report, RowChecks


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

    def export_row(self, row: int) -> Any:
        return self.vectors[row].numpy()

    def vector_width(self) -> int | None:
        return self.vectors.shape[1]

    def check_rows(self, report: Report) -> None:
        checks = RowChecks(report)
        for first, block, finite, usable in checks.iter_blocks(self.vectors.numpy()):
            for row in np.flatnonzero(~finite).tolist():
                broken = int((~np.isfinite(block[row])).sum())
                report(first + row, "not-finite", f"{broken} of {block.shape[1]} numbers are not finite")
            for row in np.flatnonzero(finite & ~usable).tolist():
                report(first + row, "zero-vector", "every number is 0")
            for row in range(len(block)):
                checks.check_duplicate(first + row, block[row].tobytes(), bool(usable[row]))
        checks.check_collapsed("vectors")
