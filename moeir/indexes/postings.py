"""Postings, and the search that walks them term by term: rows and weights of every term, rows ascending.

The loops are compiled by numba at their first call and kept beside this file or in the user's cache where one is writable.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np

from moeir.indexes.base import NO_ROW

numba.config.THREADING_LAYER = "workqueue"  # OpenMP's would change how many threads torch computes with, and so its rounding
ROWS_AT_ONCE = 2**15  # float64 sums of so many rows stay in a core's cache


def compiled(**options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """numba's `njit`, cached on disk where a folder can be written."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        try:
            fast: Callable[..., Any] = numba.njit(cache=True, **options)(function)
        except RuntimeError:  # "no locator available": nowhere to write the cache
            fast = numba.njit(**options)(function)
        return fast

    return decorate


@dataclass(frozen=True)
class Postings:
    """starts int64 [V + 1], rows int32 [nnz] (ascending within a term), weights float32 [nnz]."""

    starts: np.ndarray
    rows: np.ndarray
    weights: np.ndarray

    @classmethod
    def inverted(cls, starts: np.ndarray, terms: np.ndarray, weights: np.ndarray, vocabulary: int) -> "Postings":
        """From documents: starts int64 [N + 1], terms [nnz], weights [nnz]."""
        offsets = np.zeros(vocabulary + 1, dtype=np.int64)
        np.cumsum(np.bincount(terms, minlength=vocabulary), out=offsets[1:])
        rows, values = np.empty(len(terms), dtype=np.int32), np.empty(len(terms), dtype=np.float32)
        _scatter(starts, terms, weights, offsets[:-1].copy(), rows, values)
        return cls(offsets, rows, values)

    def search(
        self, starts: np.ndarray, terms: np.ndarray, weights: np.ndarray, places: np.ndarray, depth: int, rows_at_once: int = ROWS_AT_ONCE
    ) -> tuple[np.ndarray, np.ndarray]:
        """The `depth` best documents of each query, not yet in order -> rows int64 [Q, K], scores float32 [Q, K].

        Queries: starts int64 [Q + 1], terms [nnz], weights float32 [nnz]. A score is the float64 sum of the products of
        weights, exact each, in ascending order of terms, rounded to float32: the same bits for any batch and thread.
        Of equal scores at the cut those of the highest place stay. Unused entries hold row -1 and −∞.
        """
        terms, weights = _ascending(starts, terms, weights)
        rows = np.full((len(starts) - 1, depth), NO_ROW, dtype=np.int64)
        scores = np.full(rows.shape, -np.inf, dtype=np.float32)
        arrays = [np.ascontiguousarray(array) for array in (self.starts, self.rows, self.weights, starts, terms, weights, places)]
        _search(*arrays, rows_at_once, rows, scores)
        return rows, scores

    def paired(
        self, starts: np.ndarray, terms: np.ndarray, weights: np.ndarray, query_rows: np.ndarray, document_rows: np.ndarray
    ) -> np.ndarray:
        """The scores `search` gives to chosen pairs, 0 where no term is shared: query_rows [P], document_rows [P] -> float32 [P]."""
        terms, weights = _ascending(starts, terms, weights)
        scores = np.zeros(len(query_rows), dtype=np.float32)
        arrays = (self.starts, self.rows, self.weights, starts, terms, weights, query_rows, document_rows)
        _score(*(np.ascontiguousarray(array) for array in arrays), scores)
        return scores


def _ascending(starts: np.ndarray, terms: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    queries = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    order = np.lexsort((terms, queries))
    return terms[order].astype(np.int64), weights[order].astype(np.float32)


@compiled()
def _scatter(starts: Any, terms: Any, weights: Any, cursors: Any, rows: Any, values: Any) -> None:
    for row in range(len(starts) - 1):
        for entry in range(starts[row], starts[row + 1]):
            target = cursors[terms[entry]]
            rows[target] = row
            values[target] = weights[entry]
            cursors[terms[entry]] = target + 1


@compiled()
def _offer(rows: Any, scores: Any, places: Any, count: int, row: int, score: Any) -> int:
    """Keep the best of a heap whose root is the worst by (score, place); the new number of entries."""
    place = places[row]
    if count < len(rows):
        hole = count
        while hole > 0:
            parent = (hole - 1) // 2
            if scores[parent] < score or (scores[parent] == score and places[rows[parent]] < place):
                break
            scores[hole], rows[hole] = scores[parent], rows[parent]
            hole = parent
        scores[hole], rows[hole] = score, row
        return count + 1
    if score < scores[0] or (score == scores[0] and place < places[rows[0]]):
        return count
    hole = 0
    while 2 * hole + 1 < count:
        child = 2 * hole + 1
        other = child + 1
        if other < count and (
            scores[other] < scores[child] or (scores[other] == scores[child] and places[rows[other]] < places[rows[child]])
        ):
            child = other
        if score < scores[child] or (score == scores[child] and place < places[rows[child]]):
            break
        scores[hole], rows[hole] = scores[child], rows[child]
        hole = child
    scores[hole], rows[hole] = score, row
    return count


@compiled(parallel=True)
def _search(
    post_starts: Any, post_rows: Any, post_weights: Any,
    starts: Any, terms: Any, weights: Any,
    places: Any, span: int, rows: Any, scores: Any,
) -> None:
    for query in numba.prange(len(starts) - 1):
        first, last = starts[query], starts[query + 1]
        cursors = np.empty(last - first, np.int64)
        for entry in range(first, last):
            cursors[entry - first] = post_starts[terms[entry]]
        sums = np.zeros(span, np.float64)
        met = np.zeros(span, np.bool_)
        touched = np.empty(span, np.int32)
        count = 0
        for begin in range(0, len(places), span):
            number = 0
            for entry in range(first, last):
                cursor, end, weight = cursors[entry - first], post_starts[terms[entry] + 1], np.float64(weights[entry])
                while cursor < end and post_rows[cursor] < begin + span:
                    offset = post_rows[cursor] - begin
                    if not met[offset]:
                        met[offset] = True
                        touched[number] = offset
                        number += 1
                    sums[offset] += weight * np.float64(post_weights[cursor])
                    cursor += 1
                cursors[entry - first] = cursor
            for offset in touched[:number]:
                count = _offer(rows[query], scores[query], places, count, begin + offset, np.float32(sums[offset] + 0.0))
                sums[offset], met[offset] = 0.0, False


@compiled(parallel=True)
def _score(
    post_starts: Any, post_rows: Any, post_weights: Any, starts: Any, terms: Any, weights: Any, queries: Any, rows: Any, scores: Any
) -> None:
    for pair in numba.prange(len(rows)):
        total = 0.0
        for entry in range(starts[queries[pair]], starts[queries[pair] + 1]):
            low, end = post_starts[terms[entry]], post_starts[terms[entry] + 1]
            high = end
            while low < high:
                middle = (low + high) // 2
                if post_rows[middle] < rows[pair]:
                    low = middle + 1
                else:
                    high = middle
            if low < end and post_rows[low] == rows[pair]:
                total += np.float64(weights[entry]) * np.float64(post_weights[low])
        scores[pair] = np.float32(total + 0.0)
