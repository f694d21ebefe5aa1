"""Documents and queries of weighted terms as arrays: checked, in shards while an index is built."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from moeir.artifacts import memmap
from moeir.errors import ArtifactError, DataError

ROWS_AT_ONCE = 2**15
STEPS = 255  # of a term's largest weight, to which postings are rounded up


class SparseRows(NamedTuple):
    """Documents or queries: starts int64 [B + 1], terms [nnz], weights float32 [nnz], none of them 0."""

    starts: np.ndarray
    terms: np.ndarray
    weights: np.ndarray

    @classmethod
    def concatenate(cls, parts: "Sequence[SparseRows]") -> "SparseRows":
        """The rows of all parts, end to end; at least one part."""
        lengths = np.concatenate([np.diff(part.starts) for part in parts])
        columns = (np.concatenate([part[column] for part in parts]) for column in (1, 2))
        return cls(np.concatenate([[0], np.cumsum(lengths)]), *columns)

    def sort_terms(self) -> "SparseRows":
        """These rows with ascending terms."""
        text_indices = np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))
        if not ((np.diff(self.terms) >= 0) | (np.diff(text_indices) > 0)).all():
            order = np.lexsort((self.terms, text_indices))
            return SparseRows(self.starts, self.terms[order], self.weights[order])
        return self


class SparseShards:
    """Sparse representations to be indexed, in shards that are read lazily; `max_weights` [V] is the largest weight of each term, or 0."""

    def __init__(self) -> None:
        self.vocabulary: int | None = None
        self.max_weights, self.signed = np.zeros(0, np.float32), False  # whether some weight is negative
        self._shards: list[Any] = []

    def __len__(self) -> int:
        return sum(map(len, self._shards))

    def add(self, shard: Any) -> None:
        """Append a shard; DataError or ArtifactError for what cannot be indexed."""
        check_vocabulary(shard, self.vocabulary)
        max_weights = self.max_weights.copy() if self._shards else np.zeros(shard.vocabulary, np.float32)
        for first in range(0, len(shard), ROWS_AT_ONCE):
            texts = sparse_rows(shard, first, min(first + ROWS_AT_ONCE, len(shard)), len(self), "row")
            np.maximum.at(max_weights, texts.terms, texts.weights)
            self.signed |= bool((texts.weights < 0).any())
        self.vocabulary, self.max_weights = shard.vocabulary, max_weights
        self._shards.append(shard)

    def blocks(self, size: int = ROWS_AT_ONCE) -> Iterator[SparseRows]:
        """All documents, `size` at a time."""
        for first in range(0, len(self), size):
            parts, begin = [], 0
            for shard in self._shards:
                row_range = max(first - begin, 0), min(first + size - begin, len(shard))
                if row_range[0] < row_range[1]:
                    parts.append(sparse_rows(shard, *row_range, begin, "row"))
                begin += len(shard)
            yield SparseRows.concatenate(parts)


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
