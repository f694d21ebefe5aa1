"""Exact dense search by inner product: every document is scored."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from moeir.artifacts import memmap
from moeir.artifacts.array_folder import ArrayFolder
from moeir.indexes import simd_loops
from moeir.indexes.base import Index
from moeir.indexes.two_step import GROUP, QueryBlock, TopKPool, TwoStepIndex, run_on_threads
from moeir.indexes.vector_store import VectorShards, VectorStore, as_uint16, chunk_slices
from moeir.kernels.precision import has_native_bfloat16

MIN_MATMUL_ROWS = 16  # queries and documents of a product of matrices, so that the library always uses its bfloat16 kernel
ELEMENTS_IN_CACHE = 2**19  # documents or scores of a block on a CPU, so that both stay in a core's cache
DOCUMENTS_PER_THREAD = 2**12  # at least
ROWS_FOR_FEW_QUERIES = 2**16  # documents scanned at a time for fewer queries than that


class Flat(TwoStepIndex, Index):
    """Exact inner product of dense vectors, on any device.

    Documents are stored as float16, as in encodings; queries stay float32. The scan uses bfloat16 on hardware that multiplies it; the
    error bound covers that. See `TwoStepIndex` for the guarantees.
    """

    kind = "dense"

    def __init__(self, id_ranks: np.ndarray | None = None, device: str = "cpu") -> None:
        super().__init__(id_ranks, device)
        self._shards = VectorShards()
        self.coarse = has_native_bfloat16(device)

    def _add(self, shard: Any) -> None:
        self._shards.add(shard.vectors, lambda row: f"row {len(self) + row}: its vector")

    def _write(self, folder: Path) -> dict[str, Any]:
        self._shards.save(folder / "vectors.npy")
        return {"dimension": self._shards.width, "longest": self._shards.max_norm, "lost": self._shards.max_bf16_error}

    def _load(self, arrays: ArrayFolder, folder: Path, settings: dict[str, Any]) -> int:
        vectors = arrays.read("vectors", np.float16, (settings["documents"], settings["dimension"]))
        self._vectors = VectorStore(vectors, self._device, settings["longest"], settings["lost"])
        return len(self._vectors)

    def _query_blocks(self, queries: Any) -> Iterator[QueryBlock]:
        vectors = queries.vectors
        for part in chunk_slices(len(vectors), min(1024, self.elements_at_once // max(vectors.shape[1], 1))):
            yield QueryBlock(np.arange(part.start, part.stop), vectors[part].detach().to(self._device).float()[:, None])

    def _scans_in_bf16(self, block: QueryBlock) -> bool:
        return (self._device.type == "cuda" or len(block.query_rows) >= MIN_MATMUL_ROWS) and super()._scans_in_bf16(block)

    def _scan(self, block: QueryBlock, pool: TopKPool) -> None:
        queries = block.vectors[:, 0].to(torch.bfloat16 if self._scans_in_bf16(block) else torch.float32).contiguous()
        loops = self._vectors.takes_loops(len(self) * self._vectors.width)
        scan = self._scan_few_queries if loops and len(queries) < MIN_MATMUL_ROWS else partial(self._scan_documents, loops=loops)
        threads = 1 if self._device.type == "cuda" else max(1, min(torch.get_num_threads(), len(self) // DOCUMENTS_PER_THREAD))
        edges = [len(self) * part // threads for part in range(threads + 1)]
        pools = [TopKPool(len(queries), pool.size, self._device) for _ in range(threads)]
        run_on_threads(lambda part: scan(queries, slice(edges[part], edges[part + 1]), pools[part]), threads)
        for part in pools:
            pool.merge(part)

    def _scan_documents(self, queries: torch.Tensor, documents: slice, pool: TopKPool, *, loops: bool) -> None:
        """Push the scores of some documents for queries [Q, D], by matrix products in their precision."""
        coarse = queries.dtype == torch.bfloat16
        elements = min(self.elements_at_once // 4, ELEMENTS_IN_CACHE if self._device.type == "cpu" else self.elements_at_once)
        step = max(GROUP, elements // max(self._vectors.width, len(queries)) // GROUP * GROUP)
        read, scores = self._vectors.reader(max(step, MIN_MATMUL_ROWS), coarse, loops=loops), torch.empty(0)
        for first in range(documents.start, documents.stop, step):
            part = slice(first, min(first + step, documents.stop))
            vectors = read(part)
            if scores.shape != (len(queries), len(vectors)):
                scores = torch.empty(len(queries), len(vectors), dtype=queries.dtype, device=self._device)
            torch.mm(queries, vectors.T, out=scores)
            pool.push(scores, torch.arange(part.start, part.stop, device=self._device))

    def _scan_few_queries(self, queries: torch.Tensor, documents: slice, pool: TopKPool) -> None:
        """`_scan_documents` where reading the documents takes longest: they are read once, in float16."""
        for part in chunk_slices(documents.stop - documents.start, min(ROWS_FOR_FEW_QUERIES, self.elements_at_once // len(queries))):
            rows = slice(documents.start + part.start, documents.start + part.stop)
            vectors = self._vectors[rows]
            scores = torch.empty(len(queries), len(vectors))
            simd_loops.scan_few_queries(as_uint16(vectors), queries.numpy(), scores.numpy())
            pool.push(scores, torch.arange(rows.start, rows.stop))
            memmap.note_pages_read(vectors.nbytes)

    def _exact_scores(self, block: QueryBlock, query: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return self._vectors.exact_dots(block.vectors[:, 0], query, rows, self.pairs_at_once(self._vectors.width))
