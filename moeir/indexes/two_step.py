"""Exact search in two steps, and the pool of the best scan scores that the second step reads.

A float32 or bfloat16 scan finds candidates, a fixed-order float64 sum scores them.

The scan may sum in any order (blocks, threads, devices); only its rounding error bound matters. Returned scores come
from `exact_dot`, which gives the same bits on every device.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from moeir.errors import DataError
from moeir.indexes import base
from moeir.indexes.vector_store import VectorStore, check_width, chunk_slices
from moeir.kernels.memory import available_bytes
from moeir.kernels.precision import full_precision
from moeir.kernels.worker_threads import compute_alone


class TopKPool:
    """The best `size` scan scores of each query: scores float32 [Q, P], rows int64 [Q, P], in any order, −∞ where there are fewer.

    On a CPU, where choosing the best of a block takes longer than the products, only scores above the `size`-th best so far are gathered,
    until there are enough of them to choose again.
    """

    def __init__(self, queries: int, size: int, device: torch.device) -> None:
        self.size, self.pushed_count, self._device = size, 0, device
        self.scores = torch.empty((queries, 0), dtype=torch.float32, device=device)
        self.rows = torch.empty((queries, 0), dtype=torch.int64, device=device)
        self._cuts = torch.full((queries, 1), -torch.inf, device=device)  # the `size`-th best scores
        self._gathered: list[tuple[np.ndarray, torch.Tensor, torch.Tensor]] = []  # query, score and row of scores above the cuts
        self._gathered_count = 0

    def push(self, scores: torch.Tensor, rows: torch.Tensor) -> None:
        """Push the scores [Q, ≥ n], float32 or bfloat16, of documents `rows` [n]; further columns are ignored."""
        self.pushed_count += len(rows)
        scores = scores[:, : len(rows)]
        if self._device.type != "cpu" or not self.scores.shape[1]:
            best, positions = select_best(scores, min(self.size, len(rows)))
            self._keep_best(best, rows[positions])
            return
        query, position = np.divmod(np.flatnonzero(_is_above(scores, self._cuts)), max(len(rows), 1))
        self._gathered.append((query, scores[query, position].float(), rows[position]))
        self._gathered_count += len(query)
        if self._gathered_count >= self.size * len(scores):
            self._merge_gathered()

    def merge(self, other: "TopKPool") -> None:
        """Push what a pool of other documents holds."""
        other._merge_gathered()
        self._keep_best(other.scores, other.rows)
        self.pushed_count += other.pushed_count

    def candidates(self, depth: int, margins: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Which entries can belong to the exact top `depth`, bool [Q, P], and whether no document outside can, bool [Q].

        Documents pushed with −∞ never belong.
        """
        self._merge_gathered()
        keep = self.scores > -torch.inf
        if self.scores.shape[1] > depth:
            last = self.scores.topk(depth, dim=1).values[:, -1].double()
            keep &= self.scores.double() >= (last - margins)[:, None]
        if self.pushed_count <= self.size:
            return keep, keep.new_ones(len(keep))
        return keep, ~(keep & (self.scores == self._cuts)).any(dim=1)

    def _merge_gathered(self) -> None:
        if self._gathered_count:
            query = np.concatenate([part[0] for part in self._gathered])
            order = np.argsort(query, kind="stable")
            counts = np.bincount(query, minlength=len(self.scores))
            positions = query[order], np.arange(len(query)) - np.repeat(np.cumsum(counts) - counts, counts)
            scores = torch.full((len(counts), int(counts.max())), -torch.inf)
            rows = torch.zeros(scores.shape, dtype=torch.int64)
            scores[positions], rows[positions] = (torch.cat([part[column] for part in self._gathered])[order] for column in (1, 2))
            self._keep_best(scores, rows)
        self._gathered, self._gathered_count = [], 0

    def _keep_best(self, scores: torch.Tensor, rows: torch.Tensor) -> None:
        self.scores, self.rows = torch.cat([self.scores, scores], 1), torch.cat([self.rows, rows], 1)
        if self.scores.shape[1] > self.size:
            self.scores, positions = self.scores.topk(self.size, dim=1, sorted=False)
            self.rows = self.rows.gather(1, positions)
        if self.scores.shape[1] == self.size:
            self._cuts = self.scores.amin(dim=1, keepdim=True)


def select_best(scores: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The best `count` of each row of scores [Q, n], in float32, and their columns, in any order.

    Of many scores only those of the `count` groups with the largest maxima are compared, which hold each that is better than the rest.
    """
    chosen = None
    if scores.shape[1] % GROUP == 0 and scores.shape[1] >= 2 * GROUP * count:
        scores = scores.unflatten(1, (-1, GROUP))
        chosen = scores.amax(2).topk(count, dim=1, sorted=False).indices[..., None]  # [Q, count, 1]
        scores = scores.gather(1, chosen.expand(-1, -1, GROUP)).flatten(1)
    best, columns = scores.float().topk(count, dim=1, sorted=False)
    return best, columns if chosen is None else chosen[..., 0].gather(1, columns // GROUP) * GROUP + columns % GROUP


def _is_above(scores: torch.Tensor, cuts: torch.Tensor) -> np.ndarray:
    """Which scores [Q, n] are above the cuts [Q, 1]. If these are positive, bfloat16 is compared as integers, in a tenth of the time."""
    if scores.dtype == torch.bfloat16 and bool((cuts > 0).all()):
        scores, cuts = scores.view(torch.int16), cuts.bfloat16().view(torch.int16)
    is_above: np.ndarray = scores.numpy() > cuts.numpy() if scores.dtype != torch.bfloat16 else (scores > cuts).numpy()
    return is_above


GROUP = 64  # scores of neighbouring documents, of which the largest is looked at first
UNIT_ROUNDOFF = 2.0**-24
BF16_ROUNDOFF = 2.0**-8  # of bfloat16, whose significand has 8 bits
BF16_SCORE_LIMIT = 2.0**100  # larger scores are scanned in float32
BYTES_PER_ELEMENT = 16  # of CUDA memory for each of `elements_at_once`: a score, its factors and its copies
UNDERFLOW = 2.0**-100  # upper bound of what underflow can cost one float32 score of 2^25 products
MAX_FLOAT32 = float(torch.finfo(torch.float32).max)


@dataclass(frozen=True)
class QueryBlock:
    """A block of queries: vectors [Q, L, D] float32, zero-padded after the last token; query_rows int64 [Q], their rows in
    the result."""

    query_rows: np.ndarray
    vectors: torch.Tensor

    @cached_property
    def norms(self) -> torch.Tensor:
        """Σ_i ‖q_i‖, float64 [Q]."""
        norms: torch.Tensor = self.vectors.double().norm(dim=2).sum(dim=1)
        return norms

    def check_scores(self, max_norm: float) -> None:
        """DataError for NaN, infinity, or scores that may be too large for float32 with documents of at most this norm."""
        invalid = ~(self.norms * max(max_norm, 1.0) < MAX_FLOAT32)
        if invalid.any():
            query_row = self.query_rows[int(invalid.int().argmax())]
            raise DataError(f"query {query_row}: NaN, infinity, or a score too large for float32")

    def select(self, chosen: torch.Tensor) -> "QueryBlock":
        """The queries at the given indices [q]."""
        return QueryBlock(self.query_rows[chosen.cpu().numpy()], self.vectors[chosen])


def run_on_threads(work: Callable[[int], None], threads: int) -> None:
    """`work(part)` for each part below `threads`, each on a thread of its own, on which torch computes its operations alone.

    With one thread: the caller's own, with as many threads inside an operation as torch is set to.
    """
    if threads == 1:
        work(0)
        return
    with ThreadPoolExecutor(threads, initializer=compute_alone) as executor:
        list(executor.map(work, range(threads)))


def gamma(terms: int) -> float:
    """γ_n = n·u / (1 − n·u), Higham 2002, §3.1: n float32 roundings, in any order, with or without fused multiply-add."""
    return terms * UNIT_ROUNDOFF / (1.0 - terms * UNIT_ROUNDOFF)


def scan_error_bound(block: QueryBlock, documents: VectorStore, *, coarse: bool) -> torch.Tensor:
    """How far below the K-th best scan score a document of the exact top K can be, float64 [Q]; if `coarse`, of a scan in bfloat16.

    With s the real score, ŝ the scan's and F the returned one (float64 sum, rounded to float32),
    |ŝ − s| ≤ γ_(D+L) Σ_i ‖q_i‖ · max ‖d‖ + underflow (Cauchy–Schwarz), and |F − s| is less than two more roundings.
    With e that bound: at least K documents have ŝ ≥ t, so the K-th largest F is at least t − e, and a document with an F that large has
    ŝ ≥ t − 2e. Eight extra roundings cover F, the norms and the threshold itself.

    In bfloat16, products of rounded vectors q̂, d̂ are summed in float32 and rounded to bfloat16. With ‖d − d̂‖ ≤ `max_bf16_error`:
    |q·d − q̂·d̂| ≤ ‖q − q̂‖ ‖d‖ + ‖q̂‖ ‖d − d̂‖, both measured, not bounded. Matrix units may truncate where a CPU rounds: γ of twice the terms.
    """
    vectors, max_norm, terms = block.vectors.double(), documents.max_norm, sum(block.vectors.shape[1:]) + 8
    if not coarse:
        exact_inputs: torch.Tensor = 2.0 * (gamma(terms) * block.norms * max_norm + UNDERFLOW)
        return exact_inputs
    rounded, max_bf16_error, relative = block.vectors.bfloat16().double(), documents.max_bf16_error, gamma(2 * terms)
    norms = rounded.norm(dim=2).sum(dim=1)
    rounding_error = (relative + BF16_ROUNDOFF * (1.0 + relative)) * norms * (max_norm + max_bf16_error)
    input_error = (vectors - rounded).norm(dim=2).sum(dim=1) * max_norm + norms * max_bf16_error
    error: torch.Tensor = input_error + rounding_error + UNDERFLOW * max(max_norm, 1.0)
    return 2.0 * error * (1.0 + gamma(8))


class TwoStepIndex(base.Index):
    """Scan in float32 or bfloat16, keep every document within the error bound of the K-th, score those exactly, rank them.

    The pool of candidates starts at depth + slack. If its last entry is still within the bound (many equal scores), the
    queries concerned are scanned again with a pool four times as large, at most all documents: the result never depends
    on the pool, the block sizes, the threads or the device. At most `elements_at_once` numbers are in memory at a time.
    """

    slack = 64  # candidates beyond the depth, enough for the usual error bound
    coarse = False  # the scan may multiply in bfloat16
    _vectors: VectorStore

    def __init__(self, id_ranks: np.ndarray | None = None, device: str = "cpu") -> None:
        super().__init__(id_ranks, device)
        self._device = torch.device(device)
        self.queries_at_once = 128 if self._device.type == "cuda" else 32  # of several tokens
        self.elements_at_once = 2**28 if self._device.type == "cuda" else 2**24

    def expect_many_queries(self) -> None:
        self._vectors.expect_many_queries()

    def pairs_at_once(self, width: int) -> int:
        """How many pairs of vectors of this width may be multiplied in float64 at a time."""
        return max(1, self.elements_at_once // (16 * max(width, 1)))

    @abstractmethod
    def _query_blocks(self, queries: Any) -> Iterator[QueryBlock]:
        """The queries that have at least one token, in blocks on the device."""

    @abstractmethod
    def _scan(self, block: QueryBlock, pool: TopKPool) -> None:
        """Push a float32 score of every document into the pool."""

    @abstractmethod
    def _exact_scores(self, block: QueryBlock, query: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Scores of pairs (query in the block [P], document row [P]), queries ascending -> float64 [P]."""

    def _search_into(self, queries: Any, depth: int, rows: np.ndarray, scores: np.ndarray) -> None:
        id_ranks = self.id_ranks
        with torch.inference_mode(), full_precision(self._device):
            for block in self._checked_blocks(queries):
                size = self.slack + (2 * depth if self._scans_in_bf16(block) else depth)
                self._search_block(block, depth, size, id_ranks, rows, scores)

    def _checked_blocks(self, queries: Any) -> Iterator[QueryBlock]:
        """`_query_blocks`, checked. On CUDA, `elements_at_once` is limited to the memory left beside the vectors."""
        check_width(queries.vectors.shape[1], self._vectors.width)
        if self._device.type == "cuda":
            self._vectors.load_to_device()
            self.elements_at_once = max(1, min(self.elements_at_once, available_bytes(self._device) // BYTES_PER_ELEMENT))
        for block in self._query_blocks(queries):
            block.check_scores(self._vectors.max_norm)
            yield block

    def _scans_in_bf16(self, block: QueryBlock) -> bool:
        """Whether the scan of these queries multiplies in bfloat16."""
        return self.coarse and bool((block.norms * max(self._vectors.max_norm, 1.0) < BF16_SCORE_LIMIT).all())

    def _search_block(self, block: QueryBlock, depth: int, size: int, id_ranks: np.ndarray, rows: np.ndarray, scores: np.ndarray) -> None:
        size, max_queries = min(size, len(self)), max(1, self.elements_at_once // (4 * size))
        if len(block.query_rows) > max_queries:
            for part in chunk_slices(len(block.query_rows), max_queries):
                self._search_block(block.select(torch.arange(part.start, part.stop)), depth, size, id_ranks, rows, scores)
            return
        queries = len(block.query_rows)
        pool = TopKPool(queries, size, self._device)
        self._scan(block, pool)
        is_candidate, certain = pool.candidates(depth, scan_error_bound(block, self._vectors, coarse=self._scans_in_bf16(block)))
        is_candidate &= certain[:, None]
        query, position = is_candidate.nonzero(as_tuple=True)
        candidates = pool.rows[query, position]
        values = self._exact_scores(block, query, candidates).float().cpu().numpy()
        hits, ends = candidates.cpu().numpy(), is_candidate.sum(dim=1).cumsum(0).tolist()
        is_certain = certain.tolist()
        for i in (i for i in range(queries) if is_certain[i]):
            hit_range, query_row = slice(ends[i - 1] if i else 0, ends[i]), block.query_rows[i]
            is_hit = values[hit_range] > self.score_if_not_found
            base.fill_ranked_hits(hits[hit_range][is_hit], values[hit_range][is_hit], id_ranks, rows[query_row], scores[query_row])
        if uncertain := [i for i in range(queries) if not is_certain[i]]:
            self._search_block(block.select(torch.tensor(uncertain)), depth, 4 * size, id_ranks, rows, scores)

    def _score_pairs(self, queries: Any, query_rows: np.ndarray, document_rows: np.ndarray) -> np.ndarray:
        scores = np.zeros(len(query_rows), dtype=np.float32)
        with torch.inference_mode(), full_precision(self._device):
            for block in self._checked_blocks(queries):
                block_positions = np.full(len(queries), base.NO_ROW, dtype=np.int64)
                block_positions[block.query_rows] = np.arange(len(block.query_rows))
                pairs = np.flatnonzero(block_positions[query_rows] != base.NO_ROW)
                pairs = pairs[np.argsort(block_positions[query_rows[pairs]], kind="stable")]
                scores[pairs] = self.score_if_not_found
                pairs = pairs[self._findable_mask(document_rows[pairs])]
                query, rows = (torch.from_numpy(part[pairs]).to(self._device) for part in (block_positions[query_rows], document_rows))
                scores[pairs] = self._exact_scores(block, query, rows).float().cpu().numpy()
        return scores

    def _findable_mask(self, rows: np.ndarray) -> np.ndarray:
        """Which documents can be retrieved at all: rows [n] -> bool [n]."""
        return np.ones(len(rows), dtype=bool)
