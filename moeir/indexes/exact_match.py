"""Exact late interaction between tokens of the same term, over postings of vectors (COIL, Gao et al. 2021)."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from moeir.artifacts import memmap
from moeir.artifacts.array_folder import ArrayFolder, find_nonempty_begins
from moeir.indexes.base import Index
from moeir.indexes.token_store import TokenShards, query_positions
from moeir.indexes.two_step import UNDERFLOW, QueryBlock, TopKPool, TwoStepIndex, gamma
from moeir.indexes.vector_store import VectorStore, chunk_slices, exact_dot, pairwise_sum
from moeir.representations.base import lengths_to_starts

NO_TERM = -1


@dataclass(frozen=True)
class TermQueryBlock(QueryBlock):
    """A block of queries with each token's term as its number in the index, int64 [Q, L]; NO_TERM for padding and unknown terms."""

    terms: torch.Tensor

    def select(self, chosen: torch.Tensor) -> "TermQueryBlock":
        return TermQueryBlock(self.query_rows[chosen.cpu().numpy()], self.vectors[chosen], self.terms[chosen.cpu()])

    def by_term(self) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
        """Yield each term with the queries [a] and vectors [a, D] of its tokens, on the device."""
        terms = self.terms.flatten()
        order = terms.argsort(stable=True)
        order = order[terms[order] != NO_TERM]
        numbers, counts = terms[order].unique_consecutive(return_counts=True)
        order = order.to(self.vectors.device)
        query, tokens = order // self.terms.shape[1], self.vectors.flatten(0, 1)[order]
        ends = counts.cumsum(0).tolist()
        for term, begin, end in zip(numbers.tolist(), [0, *ends], ends, strict=False):
            yield term, query[begin:end], tokens[begin:end]


class ExactMatchIndex(TwoStepIndex, Index):
    """Exact sum over a query's tokens of the best inner product with a token of the same term, on any device.

    Document vectors are stored as float16, ordered by term; queries stay float32. A term adds at least 0; a score is the float64 sum of
    exact inner products, rounded to float32. Documents that score 0 (no shared term, or no product above 0) are not retrieved.
    """

    kind = "exact-match"
    score_if_not_found = 0.0

    def __init__(self, id_ranks: np.ndarray | None = None, device: str = "cpu") -> None:
        super().__init__(id_ranks, device)
        self._shards = TokenShards()
        self._shard_terms: list[torch.Tensor] = []  # of every token, in order of addition

    def _add(self, shard: Any) -> None:
        self._shards.add_texts(shard, len(self))
        self._shard_terms.append(shard.terms[: int(shard.starts[-1])].cpu().int())

    def _write(self, folder: Path) -> dict[str, Any]:
        """Write the postings: by term, then row, then position in the text."""
        terms = torch.cat([torch.empty(0, dtype=torch.int32), *self._shard_terms])
        order = terms.argsort(stable=True)
        distinct_terms, counts = terms[order].unique_consecutive(return_counts=True)
        rows = torch.repeat_interleave(torch.arange(len(self), dtype=torch.int32), self._shards.starts.diff())[order]
        arrays = {"terms": distinct_terms, "starts": lengths_to_starts(counts), "rows": rows}
        for name, array in arrays.items():
            memmap.save_array(folder / f"{name}.npy", array.numpy())
        self._shards.save(folder / "vectors.npy", order)
        return {"dimension": self._shards.width, "vectors": len(self._shards), "longest": self._shards.max_norm}

    def _load(self, arrays: ArrayFolder, folder: Path, settings: dict[str, Any]) -> int:
        documents, postings = int(settings["documents"]), settings["vectors"]
        vectors = arrays.read("vectors", np.float16, (postings, settings["dimension"]))
        self._vectors = VectorStore(vectors, self._device, settings["longest"])
        terms = arrays.read("terms", np.int32, (None,), below=2**31)
        arrays.check_order("terms", np.zeros(0, np.int64))
        starts = arrays.read_offsets("starts", len(terms), postings, "terms.npy and vectors.npy")
        rows = arrays.read("rows", np.int32, (postings,), below=documents)
        arrays.check_order("rows", find_nonempty_begins(starts))
        self._terms, self._starts, self._rows = map(torch.from_numpy, (terms, starts, rows))
        return documents

    @cached_property
    def _device_rows(self) -> torch.Tensor:
        """Document rows of all postings, on the device of the vectors."""
        return self._rows.to(self._vectors.storage_device)

    def _query_blocks(self, queries: Any) -> Iterator[QueryBlock]:
        for part, positions, real in query_positions(queries.starts.cpu().long(), self.queries_at_once):
            vectors = queries.vectors.detach()[positions.to(queries.vectors.device)].to(self._device).float()
            terms = queries.terms.cpu()[positions].to(self._terms.dtype)
            term_numbers = torch.searchsorted(self._terms, terms).clamp(max=max(len(self._terms) - 1, 0))
            real &= self._terms[term_numbers] == terms if len(self._terms) else False
            vectors = vectors * real[..., None].to(self._device)  # NaN stays NaN, and is refused
            yield TermQueryBlock(part.numpy(), vectors, term_numbers.masked_fill(~real, NO_TERM))

    def _scan(self, block: QueryBlock, pool: TopKPool) -> None:
        assert isinstance(block, TermQueryBlock)
        step = self.elements_at_once // (4 * max(len(block.query_rows), self._vectors.width))
        for part in chunk_slices(len(self), step):
            scores = torch.zeros(len(block.query_rows), part.stop - part.start, device=self._device)
            reached = torch.zeros_like(scores, dtype=torch.int32)
            for term, query, tokens in block.by_term():
                self._scan_term(term, tokens, query, part, scores, reached)
            pool.push(scores.masked_fill_(reached == 0, float("-inf")), torch.arange(part.start, part.stop, device=self._device))

    def _scan_term(
        self, term: int, tokens: torch.Tensor, query: torch.Tensor, part: slice, scores: torch.Tensor, reached: torch.Tensor
    ) -> None:
        """Add the scores of one term's tokens [a, D], of queries [a], to documents `part`; mark those that may have a product above 0."""
        bound = (gamma(tokens.shape[1] + 8) * tokens.double().norm(dim=1) * self._vectors.max_norm + UNDERFLOW).float()
        start = int(self._starts[term])
        term_rows = self._rows[start : int(self._starts[term + 1])]
        first, last = torch.searchsorted(term_rows, torch.tensor([part.start, part.stop], dtype=term_rows.dtype)).tolist()
        for begin, end in _row_aligned_ranges(term_rows, first, last, self.elements_at_once // (4 * max(tokens.shape))):
            rows, groups = self._device_rows[start + begin : start + end].unique_consecutive(return_inverse=True)
            similarity = self._vectors[start + begin : start + end].float() @ tokens.T  # [p, a]
            best = similarity.new_full((len(rows), len(tokens)), float("-inf"))
            best.scatter_reduce_(0, groups.to(self._device)[:, None].expand_as(similarity), similarity, "amax")
            possible = best.T + bound[:, None] >= 0
            positions = (query[:, None], rows.long().to(self._device) - part.start)  # [a, 1], [rows]
            scores.index_put_(positions, best.T.clamp(min=0.0), accumulate=True)  # a term adds at least 0
            reached.index_put_(positions, possible.int(), accumulate=True)

    def _exact_scores(self, block: QueryBlock, query: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        assert isinstance(block, TermQueryBlock)
        length, width = block.vectors.shape[1:]
        home, tokens = self._vectors.storage_device, block.vectors.flatten(0, 1)
        scores, query, rows, terms = (
            torch.zeros(len(rows), dtype=torch.float64, device=self._device),
            query.to(home),
            rows.to(home),
            block.terms.to(home),
        )
        for part in chunk_slices(len(rows) if len(self._terms) else 0, self.elements_at_once // (64 * length)):
            first, last = self._find_postings(terms[query[part]], rows[part])  # [P * L]
            counts = last - first
            slots = torch.repeat_interleave(torch.arange(len(counts), device=home), counts)
            postings = torch.arange(len(slots), device=home) + (last - counts.cumsum(0))[slots]
            token_rows = (query[part, None] * length + torch.arange(length, device=home)).flatten()[slots]
            best = torch.zeros(len(counts), dtype=torch.float64, device=self._device)  # a term adds at least 0
            for some in chunk_slices(len(slots), self.pairs_at_once(width)):
                products = exact_dot(tokens[token_rows[some].to(self._device)], self._vectors[postings[some]])
                best.scatter_reduce_(0, slots[some].to(self._device), products, "amax")
            scores[part] = pairwise_sum(best.view(-1, length))
        return scores

    def _find_postings(self, terms: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """The first and last (exclusive) posting of each term in a document, by bisection: terms [P, L], rows [P] -> [2, P * L]."""
        starts, wanted = self._starts.to(rows.device), torch.stack([rows, rows + 1])[..., None]  # [2, P, 1]
        low, high = (starts[terms.clamp(min=0) + end].expand(2, -1, -1) for end in (0, 1))
        high = high.where(terms != NO_TERM, low)
        for _ in range(int(self._starts.diff().max()).bit_length()):
            middle = (low + high) // 2
            is_before = (low < high) & (self._device_rows[middle.clamp(max=len(self._rows) - 1)] < wanted)
            low, high = torch.where(is_before, middle + 1, low), torch.where(is_before, high, middle)
        return low.flatten(1)


def _row_aligned_ranges(rows: torch.Tensor, first: int, last: int, most: int) -> Iterator[tuple[int, int]]:
    """Cut ascending rows[first:last] into ranges of about `most` entries that never split a row.

    >>> list(_row_aligned_ranges(torch.tensor([0, 0, 1, 1, 1, 2]), 0, 6, 3))
    [(0, 2), (2, 5), (5, 6)]
    """
    while first < last:
        end = min(first + max(1, most), last)
        if end < last:
            row_start = int(torch.searchsorted(rows, rows[end]))
            end = row_start if row_start > first else int(torch.searchsorted(rows, rows[end], right=True))
        yield first, end
        first = end
