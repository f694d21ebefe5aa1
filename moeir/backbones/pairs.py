"""Queries and documents that are read together: their tokens are made once each, and joined where a batch wants them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from moeir.backbones.tokens import Tokens

Numbers: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True)
class Frame:
    """What a tokenizer puts before a query, between it and a document, and behind that; `kinds` are the token types of the five parts."""

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]
    kinds: tuple[int, int, int, int, int]

    @property
    def size(self) -> int:
        """Special tokens of a pair."""
        return len(self.before) + len(self.between) + len(self.after)


class Bodies(Protocol):
    """Texts without special tokens: row n has ids starts[n] to starts[n + 1]."""

    @property
    def ids(self) -> Numbers:
        """[T]."""

    @property
    def starts(self) -> Numbers:
        """[n+1]."""


@dataclass(frozen=True)
class Ragged:
    """ids [T] of n texts end to end, starts [n+1]."""

    ids: Numbers
    starts: Numbers

    @classmethod
    def of(cls, texts: Sequence[Sequence[int]]) -> "Ragged":
        """From id lists.

        >>> Ragged.of([[4, 5], [], [6]]).starts.tolist()
        [0, 2, 2, 3]
        """
        starts = np.concatenate([[0], np.cumsum([len(text) for text in texts], dtype=np.int64)]).astype(np.int64)
        return cls(np.fromiter((number for text in texts for number in text), np.int64, int(starts[-1])), starts)

    def __len__(self) -> int:
        return len(self.starts) - 1


@dataclass(frozen=True)
class Pairs:
    """Pair n is query `query[n]` with the `sizes[n]` tokens of document `document[n]` from its token `begins[n]` on; all [n]."""

    frame: Frame
    queries: Bodies
    documents: Bodies
    query: Numbers
    document: Numbers
    begins: Numbers
    sizes: Numbers

    @cached_property
    def lengths(self) -> Numbers:
        """[n] tokens of each pair."""
        return np.asarray(self.frame.size + self._asked + self.sizes)

    @cached_property
    def starts(self) -> Numbers:
        """[n+1] where each pair begins, if all are laid end to end."""
        return np.concatenate([[0], np.cumsum(self.lengths)])

    @cached_property
    def _asked(self) -> Numbers:
        return np.asarray(self.queries.starts[self.query + 1] - self.queries.starts[self.query])

    def packed(self, rows: Sequence[int] | Numbers, side: str = "pair") -> Tokens:
        """The pairs of `rows`, in that order, with their token types."""
        chosen, frame = np.asarray(rows, dtype=np.int64), self.frame
        asked, told = self._asked[chosen], self.sizes[chosen]
        parts = np.empty((len(chosen), 5), dtype=np.int64)  # the lengths of what stands one behind the other
        for column, size in enumerate((len(frame.before), asked, len(frame.between), told, len(frame.after))):
            parts[:, column] = size
        ends = parts.cumsum().reshape(parts.shape)
        ids = np.empty(int(parts.sum()), dtype=np.int64)
        for column, signs in ((0, frame.before), (2, frame.between), (4, frame.after)):
            for place, sign in enumerate(signs):
                ids[ends[:, column] - len(signs) + place] = sign
        ids[_places(ends[:, 1] - asked, asked)] = self.queries.ids[_places(self.queries.starts[self.query[chosen]], asked)]
        begins = self.documents.starts[self.document[chosen]] + self.begins[chosen]
        ids[_places(ends[:, 3] - told, told)] = self.documents.ids[_places(begins, told)]
        lengths = parts.sum(axis=1)
        starts = torch.from_numpy(np.concatenate([[0], lengths.cumsum()]))
        segments = None
        if any(frame.kinds):
            segments = torch.from_numpy(np.repeat(np.tile(np.array(frame.kinds, dtype=np.int64), len(chosen)), parts.ravel()))
        return Tokens(torch.from_numpy(ids), starts, side, tuple(lengths.tolist()), segments=segments)


def _places(begins: Numbers, sizes: Numbers) -> Numbers:
    """Runs of places, one behind the other.

    >>> _places(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    before = np.cumsum(sizes) - sizes
    return np.asarray(np.arange(int(sizes.sum())) + np.repeat(begins - before, sizes))
