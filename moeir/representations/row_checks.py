"""Checks of stored rows that several kinds share: blocks of vectors, equal rows, and experts whose vectors have collapsed."""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

Report = Callable[[int | None, str, str], None]  # row of the text, None for all; kind of fault; message
ROWS_PER_BLOCK = 4096  # checked at once
COLLAPSED_COSINE = 0.99  # mean cosine of all pairs above which an expert counts as collapsed
MIN_TEXTS = 8  # fewest texts for that


class RowChecks:
    """Collects what the checks of one expert's rows remember from block to block."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._unit_sum: NDArray[np.float64] | None = None
        self._count = 0
        self._hashes: set[int] = set()

    def iter_blocks(self, vectors: NDArray[np.floating]) -> Iterator[tuple[int, NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_]]]:
        """Blocks of vectors [N, D]: first row, the block [n, D], which rows are finite, which of those are not zero."""
        for first in range(0, len(vectors), ROWS_PER_BLOCK):
            block = np.asarray(vectors[first : first + ROWS_PER_BLOCK], dtype=np.float32)
            finite, lengths = np.asarray(np.isfinite(block).all(axis=1)), np.sqrt((block * block).sum(axis=1))
            usable = np.asarray(finite & (lengths > 0))
            yield first, block, finite, usable
            total = (block[usable] / lengths[usable, None]).sum(axis=0)
            self._unit_sum = total.astype(np.float64) + (0.0 if self._unit_sum is None else self._unit_sum)
            self._count += int(usable.sum())

    def add_sparse(self, terms: NDArray[np.integer], weights: NDArray[np.float64], vocabulary: int) -> None:
        """Remember the weighted terms of one text."""
        if (length := float(np.sqrt((weights * weights).sum()))) > 0:
            self._unit_sum = np.zeros(vocabulary) if self._unit_sum is None else self._unit_sum
            self._unit_sum[terms] += weights / length
            self._count += 1

    def check_duplicate(self, row: int, values: bytes, comparable: bool = True) -> None:
        """Report a row with the same numbers as an earlier one."""
        digest = hash(values)
        if comparable and digest in self._hashes:
            self._report(row, "duplicate-vector", "the same numbers as an earlier text")
        self._hashes.add(digest)

    def check_collapsed(self, what: str) -> None:
        """Check the mean cosine of all pairs, which is the squared length of the mean unit vector."""
        if self._unit_sum is None or self._count < MIN_TEXTS:
            return
        cosine = float(((self._unit_sum / self._count) ** 2).sum())
        if cosine > COLLAPSED_COSINE:
            self._report(None, "collapsed", f"{self._count:,} {what}, mean cosine of two {cosine:.4f}")
