"""Exact search in two steps, and the pools of the best scan scores that the second step reads."""

from typing import Any

import numpy as np
import torch

from moeir.kernels.compiling import njit_cached

MINUS_INFINITY_KEY = np.int32(-0x7F800001)  # of −∞


class TopKPool:
    """The best `size` scan scores of each query: scores float32 [Q, P], rows int64 [Q, P], in any order."""

    def __init__(self, queries: int, size: int, device: torch.device) -> None:
        self.size, self.pushed_count = size, 0
        self.scores = torch.empty((queries, 0), dtype=torch.float32, device=device)
        self.rows = torch.empty((queries, 0), dtype=torch.int64, device=device)

    def push(self, scores: torch.Tensor, rows: torch.Tensor) -> None:
        """Push the scores [Q, ≥ n], float32 or bfloat16, of documents `rows` [n]; further columns are ignored."""
        self.pushed_count += len(rows)
        best, positions = scores[:, : len(rows)].float().topk(min(self.size, len(rows)), dim=1)
        self.scores, self.rows = torch.cat([self.scores, best], 1), torch.cat([self.rows, rows[positions]], 1)
        self._truncate()

    def _truncate(self) -> None:
        """Keep only the best `size`."""
        if self.scores.shape[1] > self.size:
            self.scores, positions = self.scores.topk(self.size, dim=1)
            self.rows = self.rows.gather(1, positions)

    def candidates(self, depth: int, margins: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Which entries can belong to the exact top `depth`, bool [Q, P], and whether no document outside can, bool [Q].

        Documents pushed with −∞ never belong.
        """
        keep = self.scores > -torch.inf
        if self.scores.shape[1] > depth:
            last = self._kth_best(depth).double()
            keep &= self.scores.double() >= (last - margins)[:, None]
        if self.pushed_count <= self.size:
            return keep, keep.new_ones(len(keep))
        return keep, ~(keep & (self.scores == self._kth_best(self.size)[:, None])).any(dim=1)

    def _kth_best(self, depth: int) -> torch.Tensor:
        """The depth-th best score of each query [Q]."""
        return self.scores.topk(depth, dim=1).values[:, -1]


class CpuTopKPool(TopKPool):
    """The CPU form: scores at or below the `size`-th best so far are skipped with one comparison.

    Scores are stored as int32 keys of the same order: a float's bits, with all but the sign flipped for negative numbers.
    """

    def __init__(self, queries: int, size: int) -> None:
        super().__init__(queries, size, torch.device("cpu"))
        self._keys = np.full((queries, 2 * size), MINUS_INFINITY_KEY, dtype=np.int32)
        self._rows = np.empty((queries, 2 * size), dtype=np.int64)
        self._counts, self._thresholds = np.zeros(queries, dtype=np.int64), np.full(queries, MINUS_INFINITY_KEY, dtype=np.int32)

    def push(self, scores: torch.Tensor, rows: torch.Tensor) -> None:
        self.pushed_count += len(rows)
        half = scores.dtype == torch.bfloat16
        bits = scores.view(torch.int16 if half else torch.int32).numpy()
        shift = np.int32(16 if half else 0)
        _push(bits, shift, rows.numpy(), self.size, self._keys, self._rows, self._counts, self._thresholds)

    def candidates(self, depth: int, margins: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        _finalise(self.size, self._keys, self._rows, self._counts, self._thresholds)
        width = min(self.size, self.pushed_count)
        self.scores = torch.from_numpy(_keys_to_floats(self._keys[:, :width]))
        self.rows = torch.from_numpy(self._rows[:, :width])
        return super().candidates(depth, margins)

    def _kth_best(self, depth: int) -> torch.Tensor:
        position = self.scores.shape[1] - depth
        return torch.from_numpy(np.partition(self.scores.numpy(), position, axis=1)[:, position])


def _keys_to_floats(keys: np.ndarray) -> np.ndarray:
    floats: np.ndarray = (keys ^ ((keys >> 31) & 0x7FFFFFFF)).view(np.float32)
    return floats


@njit_cached()
def _push(bits: Any, shift: Any, row_numbers: Any, size: int, keys: Any, rows: Any, counts: Any, cuts: Any) -> None:
    """Add scores above the threshold, bits [Q, ≥ n]; keys and rows [Q, 2 · size] are reduced to the best `size` when full.

    Chunks of 256, then of 32, are compared at once with the threshold's bits and skipped if none is above; bits are in the order of the
    numbers unless the threshold is negative.
    """
    for query in range(len(bits)):
        query_bits, count, cut = bits[query, : len(row_numbers)], counts[query], cuts[query]
        for first in range(0, len(query_bits), 256):
            chunk = query_bits[first : first + 256]
            if cut >= 0 and not any_greater(chunk, chunk.dtype.type(cut >> shift)):
                continue
            for begin in range(first, first + len(chunk), 32):
                part = query_bits[begin : begin + 32]
                if cut >= 0 and not any_greater(part, part.dtype.type(cut >> shift)):
                    continue
                for i in range(len(part)):
                    signed_bits = np.int32(np.int32(part[i]) << shift)
                    key = np.int32(signed_bits ^ np.int32((signed_bits >> np.int32(31)) & np.int32(0x7FFFFFFF)))
                    if key > cut and count == 2 * size:
                        cut, count = _keep_best(size, keys[query], rows[query], count), size
                    if key > cut:
                        keys[query, count], rows[query, count] = key, row_numbers[begin + i]
                        count += 1
        counts[query], cuts[query] = count, cut


@njit_cached()
def any_greater(numbers: Any, limit: Any) -> bool:
    """Whether any of the numbers is above the limit of the same type; no early exit, so that the loop vectorises."""
    mask = numbers.dtype.type(0)
    for i in range(len(numbers)):
        mask = numbers.dtype.type(mask | numbers.dtype.type(numbers[i] > limit))
    return mask != 0


@njit_cached()
def _keep_best(size: int, keys: Any, rows: Any, count: int) -> Any:
    """Move the best `size` of the first `count` to the front; returns the smallest of their keys."""
    cut = np.partition(keys[:count], count - size)[count - size]
    equals = size - np.sum(keys[:count] > cut)
    slot = 0
    for i in range(count):
        if keys[i] > cut or (keys[i] == cut and equals > 0):
            equals -= keys[i] == cut
            keys[slot], rows[slot] = keys[i], rows[i]
            slot += 1
    return cut


@njit_cached()
def _finalise(size: int, keys: Any, rows: Any, counts: Any, cuts: Any) -> None:
    for query in range(len(keys)):
        if counts[query] > size:
            cuts[query] = _keep_best(size, keys[query], rows[query], counts[query])
            counts[query] = size
        for i in range(counts[query], len(keys[query])):
            keys[query, i] = MINUS_INFINITY_KEY
            rows[query, i] = 0
