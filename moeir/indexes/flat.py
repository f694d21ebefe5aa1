"""Exact dense search by inner product: every document is scored."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from moeir.artifacts import memmap
from moeir.artifacts.array_folder import ArrayFolder
from moeir.indexes import simd_loops
from moeir.indexes.base import Index
from moeir.indexes.two_step import CpuTopKPool, QueryBlock, TopKPool, TwoStepIndex, chunk_slices, exact_dot, run_on_threads
from moeir.indexes.vector_store import VectorShards, VectorStore, as_uint16
from moeir.kernels.precision import has_native_bfloat16
from moeir.representations.dense import Dense

MIN_MATMUL_ROWS = 16  # queries and documents of a product of matrices, so that the library always uses its bfloat16 kernel
ELEMENTS_IN_CACHE = 2**19  # documents or scores of a block on a CPU, so that both stay in a core's cache
DOCUMENTS_PER_THREAD = 2**12  # at least
POOL_BYTES = 2**28  # of the pools of all threads
QUERIES_AT_ONCE = 64  # at least, as each pass reads all documents
ROWS_FOR_FEW_QUERIES = 2**19  # documents scanned at a time for fewer queries than that; waking the threads takes a millisecond


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
        vectors = arrays.read("vectors", np.float16, (settings["documents"], settings["dimension"]), finite=True)
        self._vectors = VectorStore(vectors, self._device, settings["longest"], settings["lost"])
        return len(self._vectors)

    def stored_documents(self, rows: np.ndarray) -> Dense:
        return Dense(self._vectors[torch.from_numpy(rows)])

    def _query_blocks(self, queries: Any) -> Iterator[QueryBlock]:
        vectors = queries.vectors
        for part in chunk_slices(len(vectors), min(1024, self.elements_at_once // max(vectors.shape[1], 1))):
            yield QueryBlock(np.arange(part.start, part.stop), vectors[part].detach().to(self._device).float()[:, None])

    def _scans_in_bf16(self, block: QueryBlock) -> bool:
        return (self._device.type == "cuda" or len(block.query_rows) >= MIN_MATMUL_ROWS) and super()._scans_in_bf16(block)

    def _scan(self, block: QueryBlock, pool: TopKPool) -> None:
        if isinstance(pool, CpuTopKPool) and len(block.query_rows) < MIN_MATMUL_ROWS:
            self._scan_few_queries(block, pool)
            return
        queries = block.vectors[:, 0].to(torch.bfloat16 if self._scans_in_bf16(block) else torch.float32)
        threads = min(torch.get_num_threads(), len(self) // DOCUMENTS_PER_THREAD)
        if threads < 2 or not isinstance(pool, CpuTopKPool):
            self._scan_documents(queries, slice(0, len(self)), pool)
            return
        for part in chunk_slices(len(queries), max(QUERIES_AT_ONCE, POOL_BYTES // (threads * pool.bytes_per_query))):
            self._scan_on_threads(queries[part], pool.select(part), threads)
        pool.pushed_count += len(self)

    def _scan_on_threads(self, queries: torch.Tensor, pool: CpuTopKPool, threads: int) -> None:
        """`_scan_documents` of all documents, a part of them on each thread, with a pool of its own."""
        edges = [len(self) * part // threads for part in range(threads + 1)]
        pools = [pool] + [pool.share() for _ in range(threads - 1)]
        run_on_threads(lambda part: self._scan_documents(queries, slice(edges[part], edges[part + 1]), pools[part]), threads)
        shares = list(chunk_slices(len(queries), -(-len(queries) // threads)))
        run_on_threads(lambda part: pool.select(shares[part]).merge([other.select(shares[part]) for other in pools[1:]]), len(shares))

    def _scan_documents(self, queries: torch.Tensor, documents: slice, pool: TopKPool) -> None:
        """Push the scores of some documents for queries [Q, D], by matrix products in their precision."""
        coarse = queries.dtype == torch.bfloat16
        elements = min(self.elements_at_once // 4, ELEMENTS_IN_CACHE if self._device.type == "cpu" else self.elements_at_once)
        step = max(64, elements // max(self._vectors.width, len(queries)))
        read, scores = self._vectors.reader(max(step, MIN_MATMUL_ROWS), coarse, loops=isinstance(pool, CpuTopKPool)), torch.empty(0)
        for first in range(documents.start, documents.stop, step):
            part = slice(first, min(first + step, documents.stop))
            vectors = read(part)
            if scores.shape != (len(queries), len(vectors)):
                scores = torch.empty(len(queries), len(vectors), dtype=queries.dtype, device=self._device)
            torch.mm(queries, vectors.T, out=scores)
            pool.push(scores, torch.arange(part.start, part.stop, device=self._device))

    def _scan_few_queries(self, block: QueryBlock, pool: TopKPool) -> None:
        """Scan for a few queries: memory bandwidth dominates, so documents are read once, in float16."""
        queries = block.vectors[:, 0].contiguous().numpy()
        for part in chunk_slices(len(self), min(ROWS_FOR_FEW_QUERIES, self.elements_at_once // len(queries))):
            documents = self._vectors[part]
            scores = torch.empty(len(queries), len(documents))
            simd_loops.scan_few_queries(as_uint16(documents), queries, scores.numpy())
            pool.push(scores, torch.arange(part.start, part.stop))
            memmap.note_pages_read(documents.nbytes)

    def _exact_scores(self, block: QueryBlock, query: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        if self._takes_loops(len(rows) * self._vectors.width):
            return torch.from_numpy(self._vectors.exact_dots(block.vectors[:, 0], query.numpy(), rows.numpy()))
        scores = torch.empty(len(rows), dtype=torch.float64, device=self._device)
        rows = rows.to(self._vectors.storage_device)
        for part in chunk_slices(len(rows), self.pairs_at_once(self._vectors.width)):
            scores[part] = exact_dot(block.vectors[query[part], 0], self._vectors[rows[part]])
        return scores
