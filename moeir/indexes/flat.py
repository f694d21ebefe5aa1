"""Exact dense search by inner product: every document is looked at."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from moeir.indexes.base import Index
from moeir.indexes.candidates import Block, Pool, TwoStep, dots, slices
from moeir.indexes.storage import Vectors


class Flat(TwoStep, Index):
    """Exact inner product of dense vectors, on any device.

    Documents are kept as float16, as encodings hold them; queries stay float32. See `TwoStep` for what is promised.
    """

    kind: ClassVar[str] = "dense"

    def __init__(self, order: np.ndarray | None = None, device: str = "cpu") -> None:
        super().__init__(order, device)
        self._vectors = Vectors(self._device)

    def __len__(self) -> int:
        return len(self._vectors)

    def add(self, shard: Any) -> None:
        first = len(self)
        self._vectors.add(shard.vectors, lambda row: f"row {first + row}: its vector")
        self.longest = self._vectors.longest

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "dimension": self._vectors.width, "longest": self.longest}

    def _arrays(self) -> dict[str, np.ndarray]:
        return {}

    def save(self, folder: Path | str) -> None:
        super().save(folder)
        self._vectors.save(Path(folder) / "vectors.npy")

    def _restore(self, arrays: dict[str, np.ndarray], folder: Path, settings: dict[str, Any]) -> None:
        self._vectors.restore(arrays["vectors"], settings["longest"])
        self.longest = self._vectors.longest

    def _blocks(self, queries: Any) -> Iterator[Block]:
        vectors = queries.vectors
        self._vectors.check_width(vectors.shape[1])
        step = self.queries_at_once or min(1024, self.elements_at_once // max(vectors.shape[1], 1))
        for part in slices(len(vectors), step):
            yield Block(np.arange(part.start, part.stop), vectors[part].detach().to(self._device).float()[:, None])

    def _scan(self, block: Block, pool: Pool) -> None:
        widest = max(self._vectors.width, len(block.lines))
        step = self.documents_at_once or self.elements_at_once // widest
        queries = block.vectors[:, 0]
        for part in slices(len(self), step):
            rows = torch.arange(part.start, part.stop, device=self._device)
            pool.push(queries @ self._vectors[part].float().T, rows)

    def _exact(self, block: Block, query: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        scores = torch.empty(len(rows), dtype=torch.float64, device=self._device)
        for part in slices(len(rows), self.pairs_at_once(self._vectors.width)):
            scores[part] = dots(block.vectors[query[part], 0], self._vectors[rows[part]])
        return scores
