"""Passages of documents that are too long for a pair, and the aggregation of passage scores.

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
    """Splits documents by `mode` into passages of at most `length` tokens (None: all that fit in a pair), one every `stride` tokens
    (None: half a passage)."""

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
        """Aggregate passage scores to one score per pair [n]: the first, the maximum or the sum."""
        return np.asarray(TOGETHER[self.kind](scores, starts)) if len(starts) else scores
