"""Packed tokens: the tokens of B texts end to end, with no padding between the tokenizer and the head."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from moeir.kernels.attention import Layout, attended_tokens
from moeir.kernels.memory import copy_to_device

SIDES = ("query", "document", "pair")


@dataclass(frozen=True)
class Signs:
    """Token ids with a meaning of their own in a vocabulary."""

    beginning: int
    separator: int
    mask: int | None
    query_marker: int | None
    document_marker: int | None
    punctuation: tuple[int, ...]


@dataclass(frozen=True)
class Tokens:
    """ids [T], starts [B+1]; text b is ids[starts[b]:starts[b+1]].

    `side` is query, document or pair: a batch never mixes them. `segments` [T] are token types, None for all zero. `silent` [T]
    marks tokens that attend but are not attended to (ColBERT's query augmentation), None for no such tokens; `attended` are the rows of
    all others with their own starts [B+1], where `silent` was known on the host. `lengths` are the text lengths, kept on the host.
    `order` [B] are the rows that lead back to the order the texts came in, where they were sorted on the host; None for as they are.
    """

    ids: Tensor
    starts: Tensor
    side: str
    lengths: tuple[int, ...]
    segments: Tensor | None = None
    silent: Tensor | None = None
    attended: tuple[Tensor, Tensor] | None = None
    order: Tensor | None = None

    @classmethod
    def pack(cls, texts: Sequence[Sequence[int]], side: str, silent: Sequence[int] | None = None) -> Self:
        """From id lists; `silent` counts the tokens at the end of each text that are not attended to."""
        assert side in SIDES, side
        lengths = np.fromiter(map(len, texts), np.int64, len(texts))
        starts = np.concatenate([[0], lengths.cumsum()]).astype(np.int64)
        ids = np.fromiter(chain.from_iterable(texts), np.int64, int(starts[-1]))
        no_attend = None
        if silent is not None and any(silent):
            owners = np.repeat(np.arange(len(lengths)), lengths)
            no_attend = torch.from_numpy(np.arange(len(ids)) - starts[owners] >= (lengths - np.asarray(silent))[owners])
        return cls(torch.from_numpy(ids), torch.from_numpy(starts), side, tuple(lengths.tolist()), silent=no_attend)

    def __len__(self) -> int:
        return len(self.starts) - 1

    @cached_property
    def layout(self) -> Layout:
        """Where the texts lie, for attention."""
        return Layout(self.lengths, self.starts, self.silent, self.attended)

    def owners(self) -> Tensor:
        """[T] the text each token belongs to."""
        return self.layout.owners

    def positions(self) -> Tensor:
        """[T] the place of each token in its text, from 0."""
        return self.layout.positions

    def to(self, device: torch.device | str) -> Self:
        """The same on a device; what is pinned is moved while the host goes on."""
        return self._map(lambda part: part.to(device, non_blocking=part.is_pinned()))

    def pinned(self) -> Self:
        """The same in memory that a CUDA device reads by itself."""
        prepared = self
        if self.silent is not None and self.attended is None:
            prepared = replace(self, attended=attended_tokens(self.silent, self.starts))
        return prepared._map(Tensor.pin_memory)

    def _map(self, change: Callable[[Tensor], Tensor]) -> Self:
        names = ("ids", "starts", "segments", "silent", "order")
        changed: dict[str, Any] = {name: change(part) for name in names if (part := getattr(self, name)) is not None}
        if self.attended is not None:
            changed["attended"] = (change(self.attended[0]), change(self.attended[1]))
        return replace(self, **changed)

    def sort_by_length(self) -> Self:
        """The same with texts of one length beside one another, and the `order` that leads back; sorted ones stay as they are."""
        lengths, device = np.asarray(self.lengths, dtype=np.int64), self.ids.device
        if self.order is not None or (lengths[1:] >= lengths[:-1]).all():
            return self
        rows = np.argsort(lengths, kind="stable")
        order, sizes = np.empty_like(rows), lengths[rows]
        order[rows] = np.arange(len(rows))
        starts = np.concatenate([[0], sizes.cumsum()])
        sorted_layout = Layout(tuple(sizes.tolist()), copy_to_device(starts, device))
        first = self.starts.index_select(0, copy_to_device(rows, device))  # [B] where each text begins among the old tokens
        tokens = sorted_layout.positions + first.index_select(0, sorted_layout.owners)
        moved = {name: part.index_select(0, tokens) for name in ("ids", "segments", "silent") if (part := getattr(self, name)) is not None}
        back = copy_to_device(order, device)
        return replace(self, starts=sorted_layout.starts, lengths=sorted_layout.lengths, order=back, attended=None, **moved)
