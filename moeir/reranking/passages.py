"""Passages of documents that are too long for a pair, and the aggregation of passage scores.

FirstP, MaxP and SumP of Dai and Callan 2019.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from moeir.architectures.cross_encoder import PairTokenizer
from moeir.backbones.packed_pairs import Numbers, PackedPairs, TokenSequences
from moeir.reranking.cascade import PASSAGE_MODES

AGGREGATIONS: dict[str, Callable[..., Numbers]] = dict(
    zip(PASSAGE_MODES, (np.add.reduceat, np.maximum.reduceat, np.add.reduceat), strict=True)
)


@dataclass(frozen=True)
class PassageSplitter:
    """Splits documents by `mode` into passages of at most `length` tokens (None: all that fit in a pair), one every `stride` tokens
    (None: half a passage)."""

    mode: str = "firstp"
    length: int | None = None
    stride: int | None = None

    def split_pairs(
        self, pairing: PairTokenizer, queries: TokenSequences, documents: TokenSequences, query: Numbers, document: Numbers
    ) -> "tuple[PackedPairs, Numbers]":
        """The passages of pairs of rows [n], and starts [n]: passages starts[i] to starts[i + 1] are those of pair i."""
        make_pairs = partial(PackedPairs, pairing.template, queries, documents)
        sizes = documents.starts[document + 1] - documents.starts[document]
        windows = pairing.document_budget(queries, query)
        if self.length is not None:
            windows = np.minimum(windows, self.length)
        zeros = np.zeros(len(query), dtype=np.int64)
        if self.mode == "firstp":
            return make_pairs(query, document, zeros, np.minimum(sizes, windows)), np.arange(len(query))
        strides = np.maximum(windows // 2, 1) if self.stride is None else np.minimum(np.full(len(query), self.stride), windows)
        counts = 1 + np.maximum(0, -(-(sizes - windows) // strides))
        starts = np.cumsum(counts) - counts
        owners = np.repeat(np.arange(len(query)), counts)
        begins = (np.arange(len(owners)) - starts[owners]) * strides[owners]
        return make_pairs(query[owners], document[owners], begins, np.minimum(windows[owners], sizes[owners] - begins)), starts

    def aggregate(self, scores: Numbers, starts: Numbers) -> Numbers:
        """Aggregate passage scores to one score per pair [n]: the first, the maximum or the sum."""
        return np.asarray(AGGREGATIONS[self.mode](scores, starts)) if len(starts) else scores
