"""Sentences of documents packed into spans, and the contexts of a span: other spans of its document, or overlapping text."""

import random
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from moeir.kernels.splitmix import Int64Array, UInt64Array, randint_high, randint_low, random_bits

MIN_SPAN_TOKENS, MAX_DISTANCE = 2, 100
CONTEXTS = ("random", "nearby", "overlap", "mixed")
KIND_COUNTER, SPAN_COUNTER = np.zeros(1, dtype=np.int64), np.ones(1, dtype=np.int64)


def split_long_sentences(begins: Sequence[int], end: int, maximum: int) -> list[int]:
    """First tokens of sentences after splitting those longer than `maximum` tokens at every `maximum`-th.

    >>> split_long_sentences([0, 3], 10, 4)
    [0, 3, 7]
    """
    return [token for begin, stop in pairwise([*begins, end]) for token in range(begin, stop, maximum)]


def pack_sentences(lengths: Sequence[int], maximum: int, rng: random.Random, *, short: float) -> list[int]:
    """The first sentence of each span, for the sentences of one document, none longer than `maximum` tokens.

    A span has a target length: `maximum`, or with probability `short` a uniform one from 2 to `maximum`. A sentence that would exceed
    the target begins the next span; a sentence longer than the target is a span of its own. (The released scripts keep the sentence that
    exceeds the target and truncate it at every use: here no token of a document is lost.)
    Wu et al. 2023 (CoT-MAE).

    >>> pack_sentences([3, 2, 4, 1], 5, random.Random(0), short=0)
    [0, 2]
    """
    firsts: list[int] = []
    room = 0
    for number, length in enumerate(lengths):
        if not firsts or length > room:
            firsts.append(number)
            room = rng.randint(MIN_SPAN_TOKENS, maximum) if rng.random() < short else maximum
        room -= length
    return firsts


class SpanBoundaries:
    """Boundaries of the sentences, spans and documents of a corpus.

    sentences [S+1] first token of each, spans [n+1] first sentence of each, documents [N+1] first span of each; the last entry is
    the end. Arrays may be memory-mapped; methods take arrays of spans.
    """

    def __init__(self, sentences: Int64Array, spans: Int64Array, documents: Int64Array, maximum: int) -> None:
        self.sentences, self.spans, self.documents, self.max_tokens = sentences, spans, documents, maximum

    def __len__(self) -> int:
        return len(self.spans) - 1

    def token_bounds(self, spans: Int64Array) -> tuple[Int64Array, Int64Array]:
        """[B] first token of each span, and the token after its last."""
        return self.sentences[self.spans[spans]], self.sentences[self.spans[spans + 1]]

    def document_rows(self, spans: Int64Array) -> Int64Array:
        """[B] the document of each span."""
        return np.searchsorted(self.documents, spans, side="right") - 1

    def has_sibling(self) -> npt.NDArray[np.bool_]:
        """[n] whether a span's document has another span."""
        counts = np.diff(self.documents)
        return np.repeat(counts > 1, counts)

    def sample_contexts(self, kind: str, spans: Int64Array, keys: UInt64Array) -> tuple[Int64Array, Int64Array]:
        """[B] token bounds of a context of each span, chosen by its key: `random`, `nearby`, `overlap`, or `mixed`, one of the three.

        Every span must have a sibling.
        """
        if kind == "mixed":
            choice = randint_high(random_bits(keys, KIND_COUNTER), 3)
            options = [self.sample_contexts(one, spans, keys) for one in CONTEXTS[:3]]
            return np.choose(choice, [begin for begin, _ in options]), np.choose(choice, [end for _, end in options])
        random_values = random_bits(keys, SPAN_COUNTER)
        if kind == "overlap":
            return self._overlapping_bounds(spans, random_values)
        return self.token_bounds(self._sample_siblings(spans, random_values, MAX_DISTANCE if kind == "random" else 1))

    def _sample_siblings(self, spans: Int64Array, random_values: UInt64Array, reach: int) -> Int64Array:
        """A uniformly chosen other span of the document, at most `reach` spans away."""
        owners = self.document_rows(spans)
        first = np.maximum(self.documents[owners], spans - reach)
        last = np.minimum(self.documents[owners + 1] - 1, spans + reach)
        sampled = first + randint_high(random_values, last - first)
        return np.asarray(sampled + (sampled >= spans))

    def _overlapping_bounds(self, spans: Int64Array, random_values: UInt64Array) -> tuple[Int64Array, Int64Array]:
        """The last k sentences of a span and as many following ones as fit into the maximum; k is random, from 1 to half of them.

        For the last span of a document: its first k sentences and those before it. If no whole sentence fits, a part of one is taken.
        """
        owners = self.document_rows(spans)
        first, after = self.spans[spans], self.spans[spans + 1]
        sentence_count = 1 + randint_low(random_values, np.maximum(1, (after - first) // 2))
        last = spans == self.documents[owners + 1] - 1
        begins, ends = self.sentences[self.spans[self.documents[owners]]], self.sentences[self.spans[self.documents[owners + 1]]]

        start = self.sentences[after - sentence_count]
        limit = np.minimum(start + self.max_tokens, ends)
        sentence_end = self.sentences[np.searchsorted(self.sentences, limit, side="right") - 1]
        forward = np.where(sentence_end > self.sentences[after], sentence_end, limit)

        end = self.sentences[first + sentence_count]
        least = np.maximum(end - self.max_tokens, begins)
        sentence_start = self.sentences[np.searchsorted(self.sentences, least, side="left")]
        backward = np.where(sentence_start < self.sentences[first], sentence_start, least)
        return np.where(last, backward, start), np.where(last, end, forward)
