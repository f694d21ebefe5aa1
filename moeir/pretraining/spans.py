"""Sentences of a document packed to spans, and the contexts a span may meet: other spans of its document, or what overlaps it."""

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
    """Where sentences begin when those longer than `maximum` tokens are cut at every `maximum`-th.

    >>> cut([0, 3], 10, 4)
    [0, 3, 7]
    """
    return [token for begin, stop in pairwise([*begins, end]) for token in range(begin, stop, maximum)]


def packed(lengths: Sequence[int], maximum: int, rng: random.Random, *, short: float = 0.15) -> list[int]:
    """The first sentence of each span, for the sentences of one document, none longer than `maximum` tokens.

    A span has a target: `maximum`, or with chance `short` a length drawn evenly from 2 to `maximum`. A sentence that would take it
    past its target begins the next one; a sentence longer than the target is a span of its own. (The released scripts keep the
    sentence that passes the target and drop what is too much at every reading: here no token of a document is lost.)
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
    """How the tokens of a corpus part into sentences, spans and documents.

    sentences [S+1] first token of each, spans [n+1] first sentence of each, documents [N+1] first span of each; the last entry is
    the end. Arrays may be memory-mapped; what is asked of many spans is answered at once.
    """

    def __init__(self, sentences: Numbers, spans: Numbers, documents: Numbers, maximum: int) -> None:
        self.sentences, self.spans, self.documents, self.maximum = sentences, spans, documents, maximum

    def __len__(self) -> int:
        return len(self.spans) - 1

    def bounds(self, spans: Numbers) -> tuple[Numbers, Numbers]:
        """[B] first token of each span, and the one after its last."""
        return self.sentences[self.spans[spans]], self.sentences[self.spans[spans + 1]]

    def owners(self, spans: Numbers) -> Numbers:
        """[B] the document of each span."""
        return np.searchsorted(self.documents, spans, side="right") - 1

    def companions(self) -> npt.NDArray[np.bool_]:
        """[n] whether a span has another one in its document."""
        counts = np.diff(self.documents)
        return np.repeat(counts > 1, counts)

    def contexts(self, kind: str, spans: Numbers, keys: Bits) -> tuple[Numbers, Numbers]:
        """[B] bounds of a context of each span, drawn by its key: `random`, `nearby`, `overlap`, or `mixed`, one of the three.

        Every span must have companions.
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
        """Another span of the document at most `reach` away, each as likely."""
        owners = self.owners(spans)
        first = np.maximum(self.documents[owners], spans - reach)
        last = np.minimum(self.documents[owners + 1] - 1, spans + reach)
        sampled = first + upper(random_values, last - first)
        return np.asarray(sampled + (sampled >= spans))

    def _overlapping(self, spans: Numbers, random_values: Bits) -> tuple[Numbers, Numbers]:
        """The last k sentences of a span and those that follow it, as many as fit into the maximum; k is drawn from 1 to half of them.

        The last span of a document: its first k sentences and those that precede it. Where not one sentence fits, a part of it does.
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
