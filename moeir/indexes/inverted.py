"""Exact learned-sparse search over postings, on the CPU."""

from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from moeir.errors import ArtifactError, DataError
from moeir.indexes.base import NO_ROW, Index, place_hits
from moeir.indexes.postings import ROWS_AT_ONCE, Postings


class Inverted(Index):
    """Exact inner product of sparse vectors, term by term over postings.

    Weights of zero count as absent. Documents that share no term with a query are not found, so a query without terms
    finds nothing. Scores are float64 sums rounded to float32 (`Postings.search`).
    """

    kind: ClassVar[str] = "sparse"
    unfound: ClassVar[float] = 0.0
    rows_at_once = ROWS_AT_ONCE

    def __init__(self, order: np.ndarray | None = None, device: str = "cpu") -> None:
        super().__init__(order, device)
        self.vocabulary: int | None = None
        self._shards: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []  # lengths, terms, weights of documents
        self._postings: Postings | None = None
        self._documents = 0

    def __len__(self) -> int:
        return self._documents

    def add(self, shard: Any) -> None:
        if self._postings is not None and not self._shards:
            raise ArtifactError("an inverted index that was opened takes no more documents; build it anew")
        self._check(shard)
        starts, terms, weights = without_zeros(shard, self._documents, "row")
        self.vocabulary = shard.vocabulary
        self._shards.append((np.diff(starts), terms.astype(np.int32), weights))
        self._documents += len(starts) - 1
        self._postings = None

    def _check(self, shard: Any) -> None:
        if self.vocabulary is not None and shard.vocabulary != self.vocabulary:
            raise ArtifactError(
                f"terms of a vocabulary of {shard.vocabulary}, but the index holds one of {self.vocabulary}: made by another checkpoint?"
            )

    def _inverted(self) -> Postings:
        if self._postings is None:
            lengths, terms, weights = (np.concatenate(column) for column in zip(*self._shards, strict=True))
            starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
            self._postings = Postings.inverted(starts, terms, weights, self.vocabulary or 0)
        return self._postings

    def _found(self, queries: Any, depth: int, rows: np.ndarray, scores: np.ndarray) -> None:
        self._check(queries)
        starts, terms, weights = without_zeros(queries, 0, "query")
        places = self.places
        found, values = self._inverted().search(starts, terms, weights, places, depth, rows_at_once=min(self.rows_at_once, len(self)))
        rank_found(found, values, places, rows, scores)

    def _paired(self, queries: Any, query_rows: np.ndarray, document_rows: np.ndarray) -> np.ndarray:
        self._check(queries)
        return self._inverted().paired(*without_zeros(queries, 0, "query"), query_rows, document_rows)

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "vocabulary": self.vocabulary}

    def _arrays(self) -> dict[str, np.ndarray]:
        if not self._shards and self._postings is None:
            return {}
        postings = self._inverted()
        return {"starts": postings.starts, "rows": postings.rows, "weights": postings.weights}

    def _restore(self, arrays: dict[str, np.ndarray], folder: Path, settings: dict[str, Any]) -> None:
        self.vocabulary, self._documents = settings["vocabulary"], settings["documents"]
        if self.vocabulary is not None:
            self._postings = opened_postings(arrays, self.vocabulary)


def opened_postings(arrays: dict[str, np.ndarray], vocabulary: int) -> Postings:
    """Postings from the memory maps `starts`, `rows`, `weights`, checked to belong together."""
    postings = Postings(arrays["starts"], arrays["rows"], arrays["weights"])
    entries = int(postings.starts[-1])
    if len(postings.starts) != vocabulary + 1 or len(postings.rows) != entries or len(postings.weights) != entries:
        raise ValueError(f"starts.npy, rows.npy and weights.npy disagree about {vocabulary} terms and {entries} postings")
    return postings


def without_zeros(sparse: Any, first: int, owner: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """starts int64 [B + 1], terms int64 [nnz], weights float32 [nnz] of the entries that are not zero, all finite."""
    starts = sparse.starts.cpu().numpy().astype(np.int64, copy=False)
    terms, weights = sparse.terms.cpu().numpy(), sparse.weights.detach().float().cpu().numpy()
    outside = (terms < 0) | (terms >= sparse.vocabulary)
    for bad, what in ((~np.isfinite(weights), "a weight is NaN or infinite"), (outside, "a term is outside the vocabulary")):
        if bad.any():
            row = first + int(np.searchsorted(starts, int(bad.argmax()), side="right")) - 1
            raise DataError(f"{owner} {row}: {what}")
    kept = weights != 0
    before = np.concatenate([[0], np.cumsum(kept)])
    return before[starts], terms[kept].astype(np.int64), weights[kept]


def rank_found(found: np.ndarray, values: np.ndarray, places: np.ndarray, rows: np.ndarray, scores: np.ndarray) -> None:
    """Put what `Postings.search` found into the order of ranks, line by line: all [Q, K] but places [N]."""
    for line, (hits, marks) in enumerate(zip(found, values, strict=True)):
        real = hits != NO_ROW
        place_hits(hits[real], marks[real], places, rows[line], scores[line])
