"""Documents split into sentences and packed into spans, and the contexts of a span: other spans of its document, or overlapping text."""

import random
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from moeir.pretraining.draws import Bits, Numbers, bits, lower, upper

SHORTEST, REACH = 2, 100
CONTEXTS = ("random", "nearby", "overlap", "mixed")
CHOICE, PICK = np.zeros(1, dtype=np.int64), np.ones(1, dtype=np.int64)


def cut(begins: Sequence[int], end: int, maximum: int) -> list[int]:
    """First tokens of sentences after splitting those longer than `maximum` tokens at every `maximum`-th.

    >>> cut([0, 3], 10, 4)
    [0, 3, 7]
    """
    return [token for begin, stop in pairwise([*begins, end]) for token in range(begin, stop, maximum)]


def packed(lengths: Sequence[int], maximum: int, rng: random.Random, *, short: float = 0.15) -> list[int]:
    """The first sentence of each span, for the sentences of one document, none longer than `maximum` tokens.

    A span has a target length: `maximum`, or with probability `short` a uniform one from 2 to `maximum`. A sentence that would exceed
    the target begins the next span; a sentence longer than the target is a span of its own. (The released scripts keep the sentence that
    exceeds the target and truncate it at every use: here no token of a document is lost.)
    Wu et al. 2023 (CoT-MAE).

    >>> packed([3, 2, 4, 1], 5, random.Random(0), short=0)
    [0, 2]
    """
    firsts: list[int] = []
    room = 0
    for number, length in enumerate(lengths):
        if not firsts or length > room:
            firsts.append(number)
            room = rng.randint(SHORTEST, maximum) if rng.random() < short else maximum
        room -= length
    return firsts


class Spans:
    """Boundaries of the sentences, spans and documents of a corpus.

    sentences [S+1] first token of each, spans [n+1] first sentence of each, documents [N+1] first span of each; the last entry is
    the end. Arrays may be memory-mapped; methods take arrays of spans.
    """

    def __init__(self, sentences: Numbers, spans: Numbers, documents: Numbers, maximum: int) -> None:
        self.sentences, self.spans, self.documents, self.maximum = sentences, spans, documents, maximum

    def __len__(self) -> int:
        return len(self.spans) - 1

    def bounds(self, spans: Numbers) -> tuple[Numbers, Numbers]:
        """[B] first token of each span, and the token after its last."""
        return self.sentences[self.spans[spans]], self.sentences[self.spans[spans + 1]]

    def owners(self, spans: Numbers) -> Numbers:
        """[B] the document of each span."""
        return np.searchsorted(self.documents, spans, side="right") - 1

    def companions(self) -> npt.NDArray[np.bool_]:
        """[n] whether a span's document has another span."""
        counts = np.diff(self.documents)
        return np.repeat(counts > 1, counts)

    def contexts(self, kind: str, spans: Numbers, keys: Bits) -> tuple[Numbers, Numbers]:
        """[B] token bounds of a context of each span, chosen by its key: `random`, `nearby`, `overlap`, or `mixed`, one of the three.

        Every span must have a sibling.
        """
        if kind == "mixed":
            choice = upper(bits(keys, CHOICE), 3)
            options = [self.contexts(one, spans, keys) for one in CONTEXTS[:3]]
            return np.choose(choice, [begin for begin, _ in options]), np.choose(choice, [end for _, end in options])
        random_values = bits(keys, PICK)
        if kind == "overlap":
            return self._overlapping(spans, random_values)
        return self.bounds(self._others(spans, random_values, REACH) if kind == "random" else self._others(spans, random_values, 1))

    def _others(self, spans: Numbers, random_values: Bits, reach: int) -> Numbers:
        """A uniformly chosen other span of the document, at most `reach` spans away."""
        owners = self.owners(spans)
        first = np.maximum(self.documents[owners], spans - reach)
        last = np.minimum(self.documents[owners + 1] - 1, spans + reach)
        sampled = first + upper(random_values, last - first)
        return np.asarray(sampled + (sampled >= spans))

    def _overlapping(self, spans: Numbers, random_values: Bits) -> tuple[Numbers, Numbers]:
        """The last k sentences of a span and as many following ones as fit into the maximum; k is random, from 1 to half of them.

        For the last span of a document: its first k sentences and those before it. If no whole sentence fits, a part of one is taken.
        """
        owners = self.owners(spans)
        first, after = self.spans[spans], self.spans[spans + 1]
        sentence_count = 1 + lower(random_values, np.maximum(1, (after - first) // 2))
        last = spans == self.documents[owners + 1] - 1
        begins, ends = self.sentences[self.spans[self.documents[owners]]], self.sentences[self.spans[self.documents[owners + 1]]]

        start = self.sentences[after - sentence_count]
        limit = np.minimum(start + self.maximum, ends)
        sentence_end = self.sentences[np.searchsorted(self.sentences, limit, side="right") - 1]
        forward = np.where(sentence_end > self.sentences[after], sentence_end, limit)

        end = self.sentences[first + sentence_count]
        least = np.maximum(end - self.maximum, begins)
        sentence_start = self.sentences[np.searchsorted(self.sentences, least, side="left")]
        backward = np.where(sentence_start < self.sentences[first], sentence_start, least)
        return np.where(last, backward, start), np.where(last, end, forward)
