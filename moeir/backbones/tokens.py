"""Packed tokens: the tokens of B texts end to end, with no padding between the tokenizer and the head."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from moeir.kernels.attention import Layout

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
    marks tokens that attend but are not attended to (ColBERT's query augmentation), None for no such tokens.
    `lengths` are the text lengths, kept on the host.
    """

    ids: Tensor
    starts: Tensor
    side: str
    lengths: tuple[int, ...]
    segments: Tensor | None = None
    silent: Tensor | None = None

    @classmethod
    def pack(cls, texts: Sequence[Sequence[int]], side: str, silent: Sequence[int] | None = None) -> Self:
        """From id lists; `silent` counts the tokens at the end of each text that are not attended to."""
        assert side in SIDES, side
        lengths = tuple(len(text) for text in texts)
        ids = torch.tensor([number for text in texts for number in text], dtype=torch.int64)
        starts = torch.tensor([0, *lengths], dtype=torch.int64).cumsum(0)
        quiet = None
        if silent is not None and any(silent):
            quiet = torch.cat([torch.arange(length) >= length - count for length, count in zip(lengths, silent, strict=True)])
        return cls(ids, starts, side, lengths, silent=quiet)

    def __len__(self) -> int:
        return len(self.lengths)

    @cached_property
    def layout(self) -> Layout:
        """Where the texts lie, for attention and for noise."""
        return Layout(self.lengths, self.starts, self.silent, self.ids)

    def owners(self) -> Tensor:
        """[T] the text each token belongs to."""
        sizes = self.starts[1:] - self.starts[:-1]
        return torch.repeat_interleave(torch.arange(len(self), device=self.starts.device), sizes, output_size=len(self.ids))

    def positions(self) -> Tensor:
        """[T] the place of each token in its text, from 0."""
        return self.layout.positions()

    def to(self, device: torch.device | str) -> Self:
        """The same on a device; what is pinned is moved while the host goes on."""
        return self._each(lambda part: part.to(device, non_blocking=part.is_pinned()))

    def pinned(self) -> Self:
        """The same in memory that a CUDA device reads by itself."""
        return self._each(Tensor.pin_memory)

    def _each(self, change: Callable[[Tensor], Tensor]) -> Self:
        names = ("ids", "starts", "segments", "silent")
        return replace(self, **{name: change(part) for name in names if (part := getattr(self, name)) is not None})

    def by_length(self) -> tuple[Self, Tensor]:
        """Texts of one length beside one another, and rows [B] that lead back: sorted.select(rows) is the old order."""
        order = sorted(range(len(self)), key=lambda text: self.lengths[text])
        rows = torch.tensor(order, dtype=torch.int64, device=self.ids.device)
        back = torch.empty_like(rows)
        back[rows] = torch.arange(len(order), device=rows.device)
        lengths = tuple(self.lengths[text] for text in order)
        sizes = torch.tensor(lengths, dtype=torch.int64, device=rows.device)
        starts = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
        owners = torch.repeat_interleave(torch.arange(len(order), device=rows.device), sizes, output_size=len(self.ids))
        places = torch.arange(len(owners), device=rows.device) - starts[owners] + self.starts[rows][owners]
        moved = {name: None if (part := getattr(self, name)) is None else part[places] for name in ("segments", "silent")}
        return replace(self, ids=self.ids[places], starts=starts, lengths=lengths, **moved), back
