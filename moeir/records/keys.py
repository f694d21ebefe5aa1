"""Sort a column of strings coded as integers: rows are buffered where they differ from the row before, and sorted once."""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Keys: TypeAlias = NDArray[np.uint64]  # [n, m]: strings as rows of integers with the same order, eight bytes per integer
MAX_KEYS = 2**23  # integers that are buffered before they are sorted


class KeySorter:
    """Buffer of one column's keys, `width` integers each; `loops` are the compiled ones for coding."""

    def __init__(self, loops: Any, width: int) -> None:
        self.width = width
        self._compiled = loops
        self._keys: Keys = np.empty((max(MAX_KEYS // width, 1), width), np.uint64)  # pages never written take no memory
        self._rows: NDArray[np.int32] | None = np.empty(len(self._keys), np.int32)
        self._key_count = 0
        self._row_count = 0

    def add(self, keys: Keys) -> bool:
        """Add the next rows; False if the buffer has no room for them."""
        if self._key_count + len(keys) > len(self._keys):
            if self._row_count:
                return False
            self._keys, self._rows = np.empty((len(keys), self.width), np.uint64), np.empty(len(keys), np.int32)
        if keys.shape[1] < self.width:
            keys = np.pad(keys, ((0, 0), (0, self.width - keys.shape[1])))
        if self._rows is None:
            self._keys[self._key_count : self._key_count + len(keys)] = keys
            self._key_count += len(keys)
        else:
            self._key_count = self._compiled.take(np.ascontiguousarray(keys), self._row_count, self._keys, self._rows, self._key_count)
        self._row_count += len(keys)
        if self._key_count == self._row_count:
            self._rows = None  # most likely all later rows differ too
        return True

    def finish(self) -> tuple[Keys, NDArray[np.int32]]:
        """The distinct keys, ascending, and for every row the index of its key among them; empties the buffer."""
        unsorted, count = self._keys[: self._key_count], self._key_count
        lengths = None if self._rows is None else np.diff(self._rows[:count], append=np.int32(self._row_count))
        self._keys, self._rows = np.empty((0, self.width), np.uint64), None
        pairs = np.zeros((4 * self.width, 2**16), bool)
        self._compiled.seen(unsorted, pairs)
        order = np.arange(4 * self.width).reshape(-1, 4)[::-1].reshape(-1)  # one digit per two bytes, the last ones first
        sizes = np.array([int(many - 1).bit_length() for many in pairs.sum(axis=1).tolist()])
        first = max(count - 1, 1).bit_length()
        ends = first + np.cumsum(sizes[order])
        shifts = np.empty(len(order), np.int64)
        shifts[order] = ends - sizes[order]
        if ends[-1] > 64:
            keys, codes = _sort_by_bytes(self._compiled, unsorted)
        else:
            keys, codes = _sort_packed(self._compiled, unsorted, pairs, shifts, sizes, first, int(ends[-1]))
        return keys, codes if lengths is None else np.repeat(codes, lengths)


def _sort_packed(
    loops: Any, unsorted: Keys, pairs: NDArray[np.bool_], shifts: NDArray[np.int64], sizes: NDArray[np.int64], first: int, last: int
) -> tuple[Keys, NDArray[np.int32]]:
    """Sort keys whose distinct bytes fit into one integer with the row below them: one integer per row is sorted."""
    shifts = np.minimum(shifts, 63).astype(np.uint64)  # a digit without bits may start at 64
    tables = np.cumsum(pairs, axis=1, dtype=np.uint64) - np.uint64(1) << shifts[:, None]
    tables[~pairs] = 0
    packed = np.empty(len(unsorted), np.uint64) if unsorted.shape[1] > 1 else unsorted.reshape(-1)
    loops.pack(unsorted, tables, packed)
    count, width = unsorted.shape
    del unsorted
    packed, spare = loops.in_order(packed, np.empty_like(packed), first, last)
    values = np.zeros((len(pairs), int(pairs.sum(axis=1).max())), np.uint64)
    for pair, letters in enumerate(pairs):
        used = np.flatnonzero(letters).astype(np.uint64)
        values[pair, : len(used)] = used << np.uint64(16 * (pair % 4))
    masks = (np.uint64(1) << sizes.astype(np.uint64)) - np.uint64(1)
    keys, codes = np.empty((count, width), np.uint64) if width > 1 else spare.reshape(-1, 1), np.empty(count, np.int32)
    distinct = loops.unpack(packed, first, shifts, masks, values, keys, codes)
    return keys[:distinct].copy(), codes


def _sort_by_bytes(loops: Any, unsorted: Keys) -> tuple[Keys, NDArray[np.int32]]:
    rows = np.arange(len(unsorted), dtype=np.int32)
    keys, order = loops.ascending(unsorted, np.empty_like(unsorted), rows, np.empty_like(rows))
    del unsorted, rows  # the largest arrays here
    codes = np.empty(len(order), np.int32)
    return keys[: loops.number(keys, order, codes)].copy(), codes
