"""Exact learned-sparse search over postings, on the CPU."""

from pathlib import Path
from typing import Any

import numpy as np

from moeir.artifacts.array_folder import ArrayFolder
from moeir.indexes.base import Index
from moeir.indexes.postings import Postings, PostingsIndex, write_postings
from moeir.indexes.sparse_rows import SparseRows, SparseShards, check_vocabulary, sparse_rows


class Inverted(PostingsIndex, Index):
    """Exact inner product of sparse vectors over postings.

    Weights of zero are dropped. Documents that share no term with a query are not retrieved, so a query without terms has no hits. Scores
    are float64 sums rounded to float32. The scan that finds candidates reads 8-bit impacts; scores come from the stored float32 weights.
    Added shards are read lazily: memory maps stay on disk.
    """

    kind = "sparse"

    def __init__(self, id_ranks: np.ndarray | None = None, device: str = "cpu") -> None:
        super().__init__(id_ranks, device)
        self._shards = SparseShards()
        self._vocabulary: int | None = None

    def _add(self, shard: Any) -> None:
        self._shards.add(shard)

    def _write(self, folder: Path) -> dict[str, Any]:
        if self._shards.vocabulary is not None:
            write_postings(self._shards.blocks(self.window), self._shards.max_weights, folder)
        return {"vocabulary": self._shards.vocabulary, "window": self.window, "signed": self._shards.signed}

    def _load(self, arrays: ArrayFolder, folder: Path, settings: dict[str, Any]) -> int:
        self._vocabulary, documents = settings["vocabulary"], int(settings["documents"])
        if self._vocabulary is not None:
            sizes = settings["window"], documents, self._vocabulary
            self._postings = Postings.from_files(arrays, *sizes, signed=settings["signed"])
        return documents

    def _query_rows(self, queries: Any) -> SparseRows:
        check_vocabulary(queries, self._vocabulary)
        return sparse_rows(queries, 0, len(queries), 0, "query")
