"""Exact dense search by inner product: every document is scored."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from moeir.artifacts import mapping
from moeir.indexes import halves
from moeir.indexes.base import Index
from moeir.indexes.candidates import Block, Pool, TwoStep, dots, slices
from moeir.indexes.storage import Vectors, bits
from moeir.kernels.bfloat16 import multiplies_bfloat16

FEWEST = 16  # queries and documents of a product of matrices, so that the library always uses its bfloat16 kernel
FEW_ROWS = 2**16  # documents scanned at a time for fewer queries than that


class Flat(TwoStep, Index):
    """Exact inner product of dense vectors, on any device.

    Documents are stored as float16, as in encodings; queries stay float32. The scan uses bfloat16 on hardware that multiplies it; the
    error bound covers that. See `TwoStepIndex` for the guarantees.
    """

    kind: ClassVar[str] = "dense"

    def __init__(self, order: np.ndarray | None = None, device: str = "cpu") -> None:
        super().__init__(order, device)
        self._vectors = Vectors(self._device)
        self.coarse = multiplies_bfloat16(device)

    def __len__(self) -> int:
        return len(self._vectors)

    def add(self, shard: Any) -> None:
        first = len(self)
        self._vectors.add(shard.vectors, lambda row: f"row {first + row}: its vector")
        self.longest, self.lost = self._vectors.longest, self._vectors.lost

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "dimension": self._vectors.width, "longest": self.longest, "lost": self.lost}

    def _arrays(self) -> dict[str, np.ndarray]:
        return {}

    def save(self, folder: Path | str) -> None:
        super().save(folder)
        self._vectors.save(Path(folder) / "vectors.npy")

    def _restore(self, arrays: dict[str, np.ndarray], folder: Path, settings: dict[str, Any]) -> None:
        self._vectors.restore(arrays["vectors"], settings["longest"], settings["lost"])
        self.longest, self.lost = self._vectors.longest, self._vectors.lost

    def _blocks(self, queries: Any) -> Iterator[Block]:
        vectors = queries.vectors
        self._vectors.check_width(vectors.shape[1])
        self._fit(self._vectors)
        step = self.queries_at_once or min(1024, self.elements_at_once // max(vectors.shape[1], 1))
        for part in slices(len(vectors), step):
            yield Block(np.arange(part.start, part.stop), vectors[part].detach().to(self._device).float()[:, None])

    def _coarse(self, block: Block) -> bool:
        return (self._device.type == "cuda" or len(block.lines) >= FEWEST) and super()._coarse(block)

    def _scan(self, block: Block, pool: Pool) -> None:
        if self._device.type == "cpu" and len(block.lines) < FEWEST:
            self._scan_for_few(block, pool)
            return
        coarse = self._coarse(block)
        dtype = torch.bfloat16 if coarse else torch.float32
        queries = block.vectors[:, 0].to(dtype)
        widest = max(self._vectors.width, len(queries))
        step = self.documents_at_once or max(64, self.elements_at_once // (4 * widest))
        read, scores = self._vectors.reader(max(step, FEWEST), coarse), torch.empty(0)
        for part in slices(len(self), step):
            documents = read(part)
            if scores.shape != (len(queries), len(documents)):
                scores = torch.empty(len(queries), len(documents), dtype=dtype, device=self._device)
            torch.mm(queries, documents.T, out=scores)
            pool.push(scores, torch.arange(part.start, part.stop, device=self._device))

    def _scan_for_few(self, block: Block, pool: Pool) -> None:
        """Scan for a few queries: memory bandwidth dominates, so documents are read once, in float16."""
        queries = block.vectors[:, 0].contiguous().numpy()
        for first, shard in self._vectors.shards():
            for part in slices(len(shard), self.documents_at_once or FEW_ROWS):
                scores = torch.empty(len(queries), part.stop - part.start)
                halves.few_products(bits(shard[part]), queries, scores.numpy())
                pool.push(scores, torch.arange(first + part.start, first + part.stop))
                mapping.read(shard[part].nbytes)

    def _exact(self, block: Block, query: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        scores = torch.empty(len(rows), dtype=torch.float64, device=self._device)
        if self._device.type == "cpu":
            queries, values = block.vectors[:, 0].contiguous().numpy(), scores.numpy()
            for first, shard in self._vectors.shards():
                for positions in mapping.parted(np.flatnonzero((rows.numpy() >= first) & (rows.numpy() < first + len(shard)))):
                    shard_scores = np.empty(len(positions))
                    halves.pair_products(bits(shard), queries, query.numpy()[positions], rows.numpy()[positions] - first, shard_scores)
                    values[positions] = shard_scores
            return scores
        rows = rows.to(self._vectors.home)
        for part in slices(len(rows), self.pairs_at_once(self._vectors.width)):
            scores[part] = dots(block.vectors[query[part], 0], self._vectors[rows[part]])
        return scores
