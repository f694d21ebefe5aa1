"""Exact late interaction: every query token against every token of every document (Khattab and Zaharia 2020, eq. 3)."""

from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import torch

from moeir.artifacts import memmap
from moeir.artifacts.array_folder import ArrayFolder
from moeir.indexes import simd_loops
from moeir.indexes.base import Index
from moeir.indexes.token_store import TokenShards, TokenVectorStore, query_blocks
from moeir.indexes.two_step import UNDERFLOW, QueryBlock, TopKPool, TwoStepIndex, gamma, run_on_threads
from moeir.indexes.vector_store import as_uint16, chunk_slices, exact_dot, pairwise_sum
from moeir.kernels.precision import has_native_bfloat16

MAX_PRODUCTS, MAX_ELEMENTS = 2**20, 2**21  # of a block of texts: products with a block of queries, and numbers, so that they fit in cache
TEXTS_AT_ONCE = 2**10  # whose scores are pushed together
PAIRS_PER_THREAD = 64  # at least, of a query and a text
MIN_MATMUL_COLUMNS = 16  # columns a product is padded to, so that the library always uses its bfloat16 kernel


class MaxSim(TwoStepIndex, Index):
    """Exact MaxSim over all documents, on any device.

    Document vectors are stored as float16, as in encodings; queries stay float32. The score is the float64 sum over the
    query's tokens of the largest exact inner product, rounded to float32. The second step recomputes few products in
    float64: of each query token's products with a document only those whose float32 value is within twice the rounding
    bound of the largest can be the largest, mostly one. A document without tokens is never retrieved, a query without
    tokens has no hits.
    """

    kind = "multivector"

    def __init__(self, id_ranks: np.ndarray | None = None, device: str = "cpu") -> None:
        super().__init__(id_ranks, device)
        self._shards = TokenShards()
        self.coarse = has_native_bfloat16(device)

    def _add(self, shard: Any) -> None:
        self._shards.add_texts(shard, len(self))

    def _write(self, folder: Path) -> dict[str, Any]:
        self._shards.save(folder / "vectors.npy")
        return self._shards.save_starts(folder)

    def _load(self, arrays: ArrayFolder, folder: Path, settings: dict[str, Any]) -> int:
        self._texts = TokenVectorStore.from_files(arrays, settings, self._device)
        self._vectors = self._texts.vectors
        return len(self._texts)

    def _query_blocks(self, queries: Any) -> Iterator[QueryBlock]:
        return query_blocks(queries, self.queries_at_once, self._device)

    def _scan(self, block: QueryBlock, pool: TopKPool) -> None:
        if self._scans_in_bf16(block) and self._vectors.takes_loops(len(self._vectors) * self._vectors.width):
            self._scan_packed(block, pool)
            return
        queries, dtype = block.vectors.flatten(0, 1), torch.bfloat16 if self._scans_in_bf16(block) else torch.float32  # [Q * L, D]
        queries = queries.to(dtype).T
        for rows, texts in self._texts.iterate_by_length():
            for first, last in padded_blocks(texts.host_lengths, self.elements_at_once // max(queries.shape)):
                documents, _ = texts.pad(first, last)
                similarity = documents.flatten(0, 1).to(dtype) @ queries  # [N * M, Q * L]
                best = similarity.view(*documents.shape[:2], -1).amax(dim=1)  # [N, Q * L]; padding repeats a token of the text
                scores = best.view(len(best), *block.vectors.shape[:2]).float().sum(dim=2).T.contiguous()
                pool.push(scores, rows[first:last])

    def _scan_packed(self, block: QueryBlock, pool: TopKPool) -> None:
        """CPU scan without padding or gathering: blocks of texts in bfloat16, then the maximum over each text's rows."""
        count, tokens, width = block.vectors.shape
        queries = torch.zeros(max(count * tokens, MIN_MATMUL_COLUMNS), width, dtype=torch.bfloat16)
        queries[: count * tokens] = block.vectors.flatten(0, 1)
        starts, block_tokens = self._texts.starts.numpy(), max(512, min(MAX_PRODUCTS // len(queries), MAX_ELEMENTS // width))
        max_tokens, lock = max(block_tokens, int(self._texts.lengths.max())), Lock()
        parts = list(chunk_slices(len(self), TEXTS_AT_ONCE))
        threads = min(torch.get_num_threads(), len(parts))

        def scan_parts(first_part: int) -> None:
            read = self._vectors.reader(max_tokens, coarse=True, loops=True)
            products = torch.empty(max_tokens, len(queries), dtype=torch.bfloat16)
            for part in parts[first_part::threads]:
                scores = torch.empty(count, part.stop - part.start)
                for first, last in self._texts.token_blocks(block_tokens, part):
                    torch.mm(read(slice(int(starts[first]), int(starts[last]))), queries.T, out=products)
                    bits = products.view(torch.int16).numpy()
                    simd_loops.maxsim_scan(bits, starts, first, last, tokens, scores.numpy(), first - part.start)
                with lock:
                    pool.push(scores, torch.arange(part.start, part.stop))

        run_on_threads(scan_parts, threads)

    def _exact_scores(self, block: QueryBlock, query: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        query_rows, rows = query.cpu().numpy(), rows.cpu()
        if self._vectors.takes_loops(int(self._texts.lengths[rows].sum()) * self._vectors.width):
            return torch.from_numpy(self._exact_scores_by_loops(block.vectors, query_rows, rows.numpy()))
        order = self._texts.lengths[rows].argsort(stable=True)
        texts, own = self._texts.select(rows[order]), torch.from_numpy(query_rows)[order].to(self._device)
        zeros_last = (~block.vectors.any(dim=2)).long().argsort(dim=1, stable=True)  # a token of zeros adds exactly 0 at the end of a sum
        queries = block.vectors.gather(1, zeros_last[..., None].expand_as(block.vectors))
        scores = torch.empty(len(rows), dtype=torch.float64, device=self._device)
        lengths = np.maximum(texts.host_lengths, queries.shape[1])
        for first, last in padded_blocks(lengths, self.pairs_at_once(self._vectors.width)):
            pair_scores = self._exact_pair_scores(queries, own[first:last], *texts.pad(first, last))
            scores[order[first:last].to(self._device)] = pair_scores
        return scores

    def _exact_scores_by_loops(self, tokens: torch.Tensor, query: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """`_exact_pair_scores` of pairs, on the CPU: tokens [Q, L, D], query [P], text [P] -> float64 [P]."""
        bounds = self._rounding_bounds(tokens).masked_fill(~tokens.any(dim=2), -1.0)  # a token of zeros adds exactly 0
        arrays = [as_uint16(self._vectors[:]), self._texts.starts.numpy(), tokens.contiguous().numpy(), bounds.numpy()]
        scores, threads = np.empty(len(rows)), max(1, min(torch.get_num_threads(), len(rows) // PAIRS_PER_THREAD))
        parts = np.array_split(np.arange(len(rows)), threads)

        def score_part(part: int) -> None:
            for pairs in memmap.bounded_chunks(parts[part]):
                chunk = slice(pairs[0], pairs[-1] + 1)
                simd_loops.exact_maxsim_pairs(*arrays, query[chunk], rows[chunk], scores[chunk])

        run_on_threads(score_part, threads)
        return scores

    def _rounding_bounds(self, tokens: torch.Tensor) -> torch.Tensor:
        """How far below a token's largest float32 product the largest exact one can be: tokens [..., D] -> float64 [...]."""
        return 2.0 * (gamma(tokens.shape[-1] + 8) * tokens.double().norm(dim=-1) * self._vectors.max_norm + UNDERFLOW)

    def _findable_mask(self, rows: np.ndarray) -> np.ndarray:
        mask: np.ndarray = self._texts.lengths.numpy()[rows] > 0
        return mask

    def _exact_pair_scores(self, queries: torch.Tensor, own: torch.Tensor, documents: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        """Documents [N, M, D], real [N, M], each with the query `own` [N] of queries [Q, L, D] -> float64 [N]; a token of zeros adds 0."""
        approximate = documents.float() @ queries[own].mT  # [N, M, L]
        counted, bounds = queries.any(dim=2)[own], self._rounding_bounds(queries)[own]  # [N, L]
        lowest = (approximate.amax(dim=1).double() - bounds).float().where(counted, torch.inf)
        is_near = (approximate >= lowest[:, None]) & real[..., None]
        document, position, token = is_near.nonzero(as_tuple=True)
        products = torch.empty(len(token), dtype=torch.float64, device=self._device)
        for part in chunk_slices(len(token), self.pairs_at_once(queries.shape[2])):
            products[part] = exact_dot(queries[own[document[part]], token[part]], documents[document[part], position[part]])
        best = torch.where(counted, -torch.inf, 0.0).double().flatten()  # −∞ before the maximum
        best.scatter_reduce_(0, document * counted.shape[1] + token, products, "amax")
        return pairwise_sum(best.view_as(counted))

    def token_vectors(self, row: int) -> np.ndarray:
        return self._texts.token_vectors(row)


def padded_blocks(lengths: np.ndarray, tokens: int) -> Iterator[tuple[int, int]]:
    """Cut ascending lengths [N] into ranges of at most `tokens` tokens after padding, each at least one document.

    >>> list(padded_blocks(np.array([1, 2, 2, 5]), 6))
    [(0, 3), (3, 4)]
    """
    first = 0
    while first < len(lengths):
        ahead = lengths[first : first + max(1, tokens // int(lengths[first]))]
        last = first + max(1, int(np.searchsorted(ahead * np.arange(1, len(ahead) + 1), tokens, side="right")))
        yield first, last
        first = last
