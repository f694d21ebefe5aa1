"""Exact learned-sparse search over postings, on the CPU."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from moeir.artifacts import memmap
from moeir.errors import ArtifactError, DataError, UsageError
from moeir.indexes.base import NO_ROW, Index, fill_ranked_hits
from moeir.indexes.postings import WINDOW_SIZE, NpyFileSink, Postings, SparseRows, build_in_memory, build_to_sink

ROWS_AT_ONCE = 2**15


class Inverted(Index):
    """Exact inner product of sparse vectors over postings; quantise=8 stores weights in 8 bits only, and is not exact.

    Weights of zero are dropped. Documents that share no term with a query are not retrieved, so a query without terms has no hits. Scores
    are float64 sums rounded to float32. The scan that finds candidates reads 8-bit impacts and skips postings that cannot matter; scores
    come from the stored float32 weights. With quantise=8 every weight is stored as the midpoint of one of 255 steps up to the largest of
    its term, and search is exact over those. Added shards are read lazily: memory maps stay on disk.
    """

    kind: ClassVar[str] = "sparse"
    score_if_not_found: ClassVar[float] = 0.0
    window = WINDOW_SIZE

    def __init__(self, id_ranks: np.ndarray | None = None, device: str = "cpu", *, quantise: int | None = None) -> None:
        super().__init__(id_ranks, device)
        if quantise not in (None, 8):
            raise UsageError(f"inverted: quantise must be 8 or none, not {quantise}")
        self.quantise = quantise
        self.exact = quantise is None  # type: ignore[misc]  # of this instance
        self.vocabulary: int | None = None
        self._shards: list[Any] = []
        self._max_weights, self._signed = np.zeros(0, np.float32), False
        self._postings: Postings | None = None
        self._document_count = 0

    def __len__(self) -> int:
        return self._document_count

    def add(self, shard: Any) -> None:
        if self._postings is not None and not self._shards:
            raise ArtifactError("an opened inverted index takes no more documents; build a new one")
        check_vocabulary(shard, self.vocabulary)
        highest, signed = np.zeros(shard.vocabulary, np.float32), False
        for first in range(0, len(shard), ROWS_AT_ONCE):
            texts = sparse_rows(shard, first, min(first + ROWS_AT_ONCE, len(shard)), self._document_count, "row")
            np.maximum.at(highest, texts.terms, texts.weights)
            signed |= bool((texts.weights < 0).any())
        self._max_weights = np.maximum(highest, self._max_weights) if self.vocabulary is not None else highest
        self._signed |= signed
        self.vocabulary = shard.vocabulary
        self._shards.append(shard)
        self._document_count += len(shard)
        self._postings = None

    def _document_windows(self) -> Iterator[SparseRows]:
        """The documents, one window at a time."""
        for first in range(0, len(self), self.window):
            parts, begin = [], 0
            for shard in self._shards:
                row_range = max(first - begin, 0), min(first + self.window - begin, len(shard))
                if row_range[0] < row_range[1]:
                    parts.append(sparse_rows(shard, *row_range, begin, "row"))
                begin += len(shard)
            yield SparseRows.concatenate(parts)

    def _built_postings(self) -> Postings:
        if self._postings is None:
            arrays = build_in_memory(self._document_windows(), self._max_weights, steps_only=not self.exact)
            self._postings = Postings(**arrays, window=self.window, signed=self._signed)
        return self._postings

    def _search_into(self, queries: Any, depth: int, rows: np.ndarray, scores: np.ndarray) -> None:
        check_vocabulary(queries, self.vocabulary)
        id_ranks = self.id_ranks
        hits, values = self._built_postings().search(sparse_rows(queries, 0, len(queries), 0, "query"), id_ranks, depth)
        fill_all_ranked_hits(hits, values, id_ranks, rows, scores)

    def _score_pairs(self, queries: Any, query_rows: np.ndarray, document_rows: np.ndarray) -> np.ndarray:
        check_vocabulary(queries, self.vocabulary)
        return self._built_postings().score_pairs(sparse_rows(queries, 0, len(queries), 0, "query"), query_rows, document_rows)

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "vocabulary": self.vocabulary, "window": self.window, "signed": self._signed}

    def _arrays(self) -> dict[str, np.ndarray]:
        return {} if self._postings is None else self._postings.arrays()

    def save(self, folder: Path | str) -> None:
        """Write the index; if it was not searched yet, it is built on disk, one window of documents at a time."""
        super().save(folder)
        if self._postings is None and self._shards:
            with NpyFileSink(Path(folder)) as files:
                build_to_sink(self._document_windows(), self._max_weights, files, steps_only=not self.exact)

    def _load_arrays(self, arrays: dict[str, np.ndarray], folder: Path, settings: dict[str, Any]) -> None:
        self.vocabulary, self._document_count = settings["vocabulary"], settings["documents"]
        if self.vocabulary is not None:
            self.window, self._signed = settings["window"], settings["signed"]
            self._postings = Postings.from_arrays(arrays, self.window, self._signed, self._document_count, self.vocabulary)


def check_vocabulary(sparse: Any, vocabulary: int | None) -> None:
    """Refuse terms of another vocabulary than that of the index, None if it has no documents."""
    if vocabulary is not None and sparse.vocabulary != vocabulary:
        raise ArtifactError(
            f"terms of a vocabulary of {sparse.vocabulary}, but the index holds one of {vocabulary}: made by another checkpoint?"
        )


def sparse_rows(sparse: Any, begin: int, end: int, first: int, label: str) -> SparseRows:
    """Rows begin to end of a representation, checked, without entries of weight 0; `label` and `first` (number of row 0) are for errors."""
    starts = np.asarray(sparse.starts[begin : end + 1].cpu().numpy(), dtype=np.int64)
    entries = slice(int(starts[0]), int(starts[-1]))
    terms, weights = sparse.terms[entries].cpu().numpy(), sparse.weights[entries].detach().float().cpu().numpy()
    memmap.note_pages_read(terms.nbytes + weights.nbytes)
    starts = starts - starts[0]
    outside = (terms < 0) | (terms >= sparse.vocabulary)
    for invalid, problem in ((~np.isfinite(weights), "a weight is NaN or infinite"), (outside, "a term is outside the vocabulary")):
        if invalid.any():
            row = first + begin + int(np.searchsorted(starts, int(invalid.argmax()), side="right")) - 1
            raise DataError(f"{label} {row}: {problem}")
    is_nonzero = weights != 0
    if not is_nonzero.all():
        starts = np.concatenate([[0], np.cumsum(is_nonzero)])[starts]
        terms, weights = terms[is_nonzero], weights[is_nonzero]
    return SparseRows(starts, terms.astype(np.int64), weights)


def fill_all_ranked_hits(hits: np.ndarray, values: np.ndarray, id_ranks: np.ndarray, rows: np.ndarray, scores: np.ndarray) -> None:
    """Write the hits of `Postings.search` in rank order: hits, values [Q, n], id_ranks [N] -> rows, scores [Q, K]."""
    for query_row, (query_hits, query_values) in enumerate(zip(hits, values, strict=True)):
        is_hit = query_hits != NO_ROW
        fill_ranked_hits(query_hits[is_hit], query_values[is_hit], id_ranks, rows[query_row], scores[query_row])
