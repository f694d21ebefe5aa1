"""The best scan scores so far: what the first step of exact search hands to the second."""

from typing import Any

import numpy as np
import torch

from moeir.kernels.compiling import compiled

NOTHING = np.int32(-0x7F800001)  # the key of −∞


class Pool:
    """The best `size` scan scores of each query: scores float32 [Q, P], rows int64 [Q, P], in any order."""

    def __init__(self, queries: int, size: int, device: torch.device) -> None:
        self.size, self.offered = size, 0
        self.scores = torch.empty((queries, 0), dtype=torch.float32, device=device)
        self.rows = torch.empty((queries, 0), dtype=torch.int64, device=device)

    def push(self, scores: torch.Tensor, rows: torch.Tensor) -> None:
        """Offer the scores [Q, ≥ n], float32 or bfloat16, of documents `rows` [n]; columns behind those are not looked at."""
        self.offered += len(rows)
        best, positions = scores[:, : len(rows)].float().topk(min(self.size, len(rows)), dim=1)
        self.scores, self.rows = torch.cat([self.scores, best], 1), torch.cat([self.rows, rows[positions]], 1)
        self._cut()

    def _cut(self) -> None:
        """Keep the best `size`."""
        if self.scores.shape[1] > self.size:
            self.scores, kept = self.scores.topk(self.size, dim=1)
            self.rows = self.rows.gather(1, kept)

    def candidates(self, depth: int, margins: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Which entries can belong to the exact top `depth`, bool [Q, P], and whether nobody outside can, bool [Q].

        What was offered with −∞ belongs to none.
        """
        keep = self.scores > -torch.inf
        if self.scores.shape[1] > depth:
            last = self._last(depth).double()
            keep &= self.scores.double() >= (last - margins)[:, None]
        if self.offered <= self.size:
            return keep, keep.new_ones(len(keep))
        return keep, ~(keep & (self.scores == self._last(self.size)[:, None])).any(dim=1)

    def _last(self, depth: int) -> torch.Tensor:
        """The depth-th best score of each query [Q]."""
        return self.scores.topk(depth, dim=1).values[:, -1]


class QuickPool(Pool):
    """The same on a processor: only what beats the `size`-th best so far is looked at twice.

    Scores are held as whole numbers in the same order, their keys: a float's bits, those behind the sign flipped below zero.
    """

    def __init__(self, queries: int, size: int) -> None:
        super().__init__(queries, size, torch.device("cpu"))
        self._keys = np.full((queries, 2 * size), NOTHING, dtype=np.int32)
        self._rows = np.empty((queries, 2 * size), dtype=np.int64)
        self._counts, self._cuts = np.zeros(queries, dtype=np.int64), np.full(queries, NOTHING, dtype=np.int32)

    def push(self, scores: torch.Tensor, rows: torch.Tensor) -> None:
        self.offered += len(rows)
        half = scores.dtype == torch.bfloat16
        bits = scores.view(torch.int16 if half else torch.int32).numpy()
        shift = np.int32(16 if half else 0)
        _offer(bits, shift, rows.numpy(), self.size, self._keys, self._rows, self._counts, self._cuts)

    def candidates(self, depth: int, margins: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        _settle(self.size, self._keys, self._rows, self._counts, self._cuts)
        width = min(self.size, self.offered)
        self.scores = torch.from_numpy(_floats(self._keys[:, :width]))
        self.rows = torch.from_numpy(self._rows[:, :width])
        return super().candidates(depth, margins)

    def _last(self, depth: int) -> torch.Tensor:
        place = self.scores.shape[1] - depth
        return torch.from_numpy(np.partition(self.scores.numpy(), place, axis=1)[:, place])


def _floats(keys: np.ndarray) -> np.ndarray:
    floats: np.ndarray = (keys ^ ((keys >> 31) & 0x7FFFFFFF)).view(np.float32)
    return floats


@compiled()
def _offer(bits: Any, shift: Any, numbers: Any, size: int, keys: Any, rows: Any, counts: Any, cuts: Any) -> None:
    """Take what lies above the cut, bits [Q, ≥ n]; keys and rows [Q, 2 · size] are cut back to the best `size` when full.

    Where nothing does, nothing is done: stretches of 256, then of 32, are compared at once with the bits of the cut, which are in the order
    of the numbers unless it is negative.
    """
    for query in range(len(bits)):
        own, count, cut = bits[query, : len(numbers)], counts[query], cuts[query]
        for first in range(0, len(own), 256):
            wide = own[first : first + 256]
            if cut >= 0 and not any_above(wide, wide.dtype.type(cut >> shift)):
                continue
            for begin in range(first, first + len(wide), 32):
                part = own[begin : begin + 32]
                if cut >= 0 and not any_above(part, part.dtype.type(cut >> shift)):
                    continue
                for i in range(len(part)):
                    whole = np.int32(np.int32(part[i]) << shift)
                    key = np.int32(whole ^ np.int32((whole >> np.int32(31)) & np.int32(0x7FFFFFFF)))
                    if key > cut and count == 2 * size:
                        cut, count = _best(size, keys[query], rows[query], count), size
                    if key > cut:
                        keys[query, count], rows[query, count] = key, numbers[begin + i]
                        count += 1
        counts[query], cuts[query] = count, cut


@compiled()
def any_above(numbers: Any, limit: Any) -> bool:
    """Whether any of the numbers, of the limit's own type, is above it; without an early end, so that many are compared at once."""
    found = numbers.dtype.type(0)
    for i in range(len(numbers)):
        found = numbers.dtype.type(found | numbers.dtype.type(numbers[i] > limit))
    return found != 0


@compiled()
def _best(size: int, keys: Any, rows: Any, count: int) -> Any:
    """Bring the best `size` of the first `count` to the front; the least of their keys."""
    cut = np.partition(keys[:count], count - size)[count - size]
    equals = size - np.sum(keys[:count] > cut)
    kept = 0
    for i in range(count):
        if keys[i] > cut or (keys[i] == cut and equals > 0):
            equals -= keys[i] == cut
            keys[kept], rows[kept] = keys[i], rows[i]
            kept += 1
    return cut


@compiled()
def _settle(size: int, keys: Any, rows: Any, counts: Any, cuts: Any) -> None:
    for query in range(len(keys)):
        if counts[query] > size:
            cuts[query] = _best(size, keys[query], rows[query], counts[query])
            counts[query] = size
        for i in range(counts[query], len(keys[query])):
            keys[query, i] = NOTHING
            rows[query, i] = 0
