"""Checks of encodings: values that are not finite, zero vectors, texts without terms, and collapsed experts."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from moeir.data_checks.findings import Findings

ROWS_PER_BLOCK = 4096  # checked at once
COLLAPSED_COSINE = 0.99  # mean cosine of all pairs above which an expert counts as collapsed
MIN_TEXTS = 8  # fewest texts for that
Numbers = NDArray[np.floating]
Integers = NDArray[np.integer]


class VectorChecker:
    """Checks the rows of one expert, chunk by chunk; `ids` name the texts, `file` the findings."""

    def __init__(self, file: str, ids: list[str], findings: Findings) -> None:
        self.file, self._ids, self._findings = file, ids, findings
        self._unit_sum: NDArray[np.float64] | None = None
        self._rows = 0
        self._hashes: set[int] = set()

    def _report(self, row: int, kind: str, message: str) -> None:
        self._findings.add(self.file, row + 1, kind, f"text {self._ids[row]!r}: {message}")

    def check_dense(self, vectors: Numbers) -> None:
        """vectors [N, D]."""
        for first, block in _iter_blocks(vectors):
            finite = np.asarray(np.isfinite(block).all(axis=1))
            lengths = np.sqrt((block * block).sum(axis=1))
            for row in np.flatnonzero(~finite):
                broken = int((~np.isfinite(block[row])).sum())
                self._report(first + int(row), "not-finite", f"{broken} of {block.shape[1]} numbers are not finite")
            for row in np.flatnonzero(finite & (lengths == 0)):
                self._report(first + int(row), "zero-vector", "every number is 0")
            for offset in range(len(block)):
                self._check_duplicate(first + offset, block[offset].tobytes(), bool(finite[offset]) and lengths[offset] > 0)
            usable = finite & (lengths > 0)
            self._accumulate((block[usable] / lengths[usable, None]).sum(axis=0), int(usable.sum()))
        self._check_collapsed("vectors")

    def check_multivector(self, vectors: Numbers, starts: Integers) -> None:
        """vectors [T, D], starts [N + 1]."""
        for empty in np.flatnonzero(np.diff(starts) == 0).tolist():
            self._report(empty, "zero-vector", "has no vector")
        last_reported = -1
        for first, block in _iter_blocks(vectors):
            finite = np.asarray(np.isfinite(block).all(axis=1))
            for offset in np.flatnonzero(~finite):
                row = int(np.searchsorted(starts, first + offset, side="right")) - 1
                if row != last_reported:
                    self._report(row, "not-finite", f"vector {first + int(offset) - int(starts[row]) + 1} has numbers that are not finite")
                last_reported = row
            lengths = np.sqrt((block * block).sum(axis=1))
            usable = finite & (lengths > 0)
            self._accumulate((block[usable] / lengths[usable, None]).sum(axis=0), int(usable.sum()))
        self._check_collapsed("vectors of tokens")

    def check_sparse(self, terms: Integers, weights: Numbers, starts: Integers, vocabulary: int) -> None:
        """terms and weights [pairs], starts [N + 1]."""
        for row in range(len(starts) - 1):
            own = slice(int(starts[row]), int(starts[row + 1]))
            values, term_ids = np.asarray(weights[own], dtype=np.float64), np.asarray(terms[own])
            if not len(values):
                self._report(row, "no-terms", "no term has a weight")
                continue
            if not np.isfinite(values).all() or term_ids.min() < 0 or term_ids.max() >= vocabulary:
                self._report(row, "not-finite", "a weight is not finite, or a term is not of the vocabulary")
                continue
            self._check_duplicate(row, term_ids.tobytes() + values.tobytes(), True)
            if (length := float(np.sqrt((values * values).sum()))) > 0:
                self._unit_sum = np.zeros(vocabulary) if self._unit_sum is None else self._unit_sum
                self._unit_sum[term_ids] += values / length
                self._rows += 1
        self._check_collapsed("texts")

    def _accumulate(self, total: NDArray[np.floating], count: int) -> None:
        self._unit_sum = total.astype(np.float64) + (0.0 if self._unit_sum is None else self._unit_sum)
        self._rows += count

    def _check_duplicate(self, row: int, values: bytes, comparable: bool) -> None:
        digest = hash(values)
        if comparable and digest in self._hashes:
            self._report(row, "duplicate-vector", "the same numbers as an earlier text")
        self._hashes.add(digest)

    def _check_collapsed(self, what: str) -> None:
        """Check the mean cosine of all pairs, which is the squared length of the mean unit vector."""
        if self._unit_sum is None or self._rows < MIN_TEXTS:
            return
        cosine = float(((self._unit_sum / self._rows) ** 2).sum())
        if cosine > COLLAPSED_COSINE:
            self._findings.add(self.file, None, "collapsed", f"{self._rows:,} {what}, mean cosine of two {cosine:.4f}")


def _iter_blocks(vectors: Numbers) -> Iterator[tuple[int, NDArray[np.float32]]]:
    for first in range(0, len(vectors), ROWS_PER_BLOCK):
        yield first, np.asarray(vectors[first : first + ROWS_PER_BLOCK], dtype=np.float32)


def check_ids(file: str, ids: list[str], findings: Findings, documents: set[str] | None) -> None:
    """Check the ids of encodings: each once, and equal to those of the corpus if it is given."""
    seen: set[str] = set()
    for number, document in enumerate(ids, 1):
        if document in seen:
            findings.add(file, number, "duplicate-id", f"{document!r} occurs on an earlier line too")
        elif documents is not None and document not in documents:
            findings.add(file, number, "unknown-document", f"{document!r} is not in the corpus")
        seen.add(document)
    for document in documents or ():
        if document not in seen:
            findings.add(file, None, "missing-document", f"{document!r} of the corpus is not encoded")
