"""The texts of a batch shared among processes, and split into parts that are encoded one after another."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from moeir.backbones.tokens import PackedTokens
from moeir.learning.batches import Numbers


class TokenRows(Protocol):
    """Texts as rows of tokens: row n has the tokens starts[n] to starts[n + 1]."""

    @property
    def starts(self) -> Numbers:
        """[n+1]."""

    def pack(self, rows: Sequence[int], side: str) -> PackedTokens:
        """The texts of `rows`, in that order."""


@dataclass(frozen=True)
class ShardSpec:
    """The part of a batch that a process encodes, as number `rank` of `size`, in parts of `max_tokens` tokens (None: one part)."""

    rank: int = 0
    size: int = 1
    max_tokens: int | None = None


SINGLE_SHARD = ShardSpec()


class ShardedTexts(NamedTuple):
    """A process's share of the texts of a side, in the parts that are encoded one after another, each sorted by length.

    With the parts of all processes end to end, text i of the batch is number restore_order[i]; where `restore_order` is None it is
    number i. `total_tokens` are those of all processes.
    """

    parts: tuple[PackedTokens, ...]
    restore_order: Tensor | None
    total_tokens: int

    def pin_memory(self) -> Self:
        """The same in pinned memory."""
        back = None if self.restore_order is None else self.restore_order.pin_memory()
        return self._replace(parts=tuple(part.pin_memory() for part in self.parts), back=back)


def shard_texts(texts: TokenRows, rows: Sequence[int], side: str, shard: ShardSpec) -> ShardedTexts:
    """The texts of `rows` shared by length: processes have equal work, and the texts of a part have nearly the same length."""
    row_array = np.asarray(rows, dtype=np.int64)
    sizes = texts.starts[row_array + 1] - texts.starts[row_array]
    total = int(sizes.sum())
    if shard.size == 1 and (shard.max_tokens is None or total <= shard.max_tokens):
        return ShardedTexts((texts.pack(rows, side).sort_by_length(),), None, total)
    by_length = np.argsort(sizes, kind="stable")
    round_number, position = np.divmod(np.arange(len(row_array)), shard.size)
    owners = np.where(
        round_number % 2, shard.size - 1 - position, position
    )  # back and forth, so that no process always gets the longer text
    own = by_length[owners == shard.rank]
    parts = tuple(texts.pack(row_array[block].tolist(), side).sort_by_length() for block in _split_by_tokens(own, sizes, shard.max_tokens or total))
    order = by_length[np.argsort(owners, kind="stable")]
    return ShardedTexts(parts, torch.from_numpy(np.argsort(order, kind="stable")), total)


def _split_by_tokens(rows: Numbers, sizes: Numbers, max_tokens: int) -> Iterator[Numbers]:
    """Rows in parts of at most `max_tokens` tokens, or of one text."""
    ends = sizes[rows].cumsum()
    first = 0
    while first < len(rows):
        before = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + max_tokens, side="right")))
        yield rows[first:last]
        first = last
