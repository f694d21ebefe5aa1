"""Documents longer than what a pair can hold: which of their tokens are read, and what the scores of several passages make of them.

FirstP, MaxP and SumP of Dai and Callan 2019.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from moeir.architectures.pairing import Pairing
from moeir.backbones.pairs import Bodies, Numbers, Pairs
from moeir.reranking.cascade import PASSAGES

TOGETHER: dict[str, Callable[..., Numbers]] = dict(zip(PASSAGES, (np.add.reduceat, np.maximum.reduceat, np.add.reduceat), strict=True))


@dataclass(frozen=True)
class Passages:
    """How documents are cut: `kind`; passages of at most `length` tokens (None: all that the pair has room for), one every `stride`
    tokens (None: half a passage)."""

    kind: str = "firstp"
    length: int | None = None
    stride: int | None = None

    def pairs(self, pairing: Pairing, queries: Bodies, documents: Bodies, query: Numbers, document: Numbers) -> "tuple[Pairs, Numbers]":
        """The passages of pairs of rows [n], and starts [n]: passages starts[i] to starts[i + 1] are those of pair i."""
        make_pairs = partial(Pairs, pairing.frame, queries, documents)
        sizes = documents.starts[document + 1] - documents.starts[document]
        windows = pairing.room(queries, query)
        if self.length is not None:
            windows = np.minimum(windows, self.length)
        zeros = np.zeros(len(query), dtype=np.int64)
        if self.kind == "firstp":
            return make_pairs(query, document, zeros, np.minimum(sizes, windows)), np.arange(len(query))
        strides = np.maximum(windows // 2, 1) if self.stride is None else np.minimum(np.full(len(query), self.stride), windows)
        counts = 1 + np.maximum(0, -(-(sizes - windows) // strides))
        starts = np.cumsum(counts) - counts
        owners = np.repeat(np.arange(len(query)), counts)
        begins = (np.arange(len(owners)) - starts[owners]) * strides[owners]
        return make_pairs(query[owners], document[owners], begins, np.minimum(windows[owners], sizes[owners] - begins)), starts

    def together(self, scores: Numbers, starts: Numbers) -> Numbers:
        """Scores of passages -> one score for each pair [n]: the best passage's, or the sum."""
        return np.asarray(TOGETHER[self.kind](scores, starts)) if len(starts) else scores
