"""Packed token batches: the tokens of B texts end to end, without padding."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import chain
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from moeir.kernels.attention import PackedLayout, find_visible_keys
from moeir.kernels.memory import copy_to_device

SIDES = ("query", "document", "pair")
Numbers: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True)
class SpecialTokens:
    """Ids of the special tokens of a vocabulary, None for those that it lacks, and how many stand before and after the tokens of a text;
    ids of tokens of punctuation, and of those that are one mark without a space."""

    beginning: int | None
    separator: int | None
    mask: int | None
    query_marker: int | None
    document_marker: int | None
    punctuation: tuple[int, ...]
    leading: int = 1
    trailing: int = 1
    unknown: int | None = None
    punctuation_marks: tuple[int, ...] = ()


class TensorFields:
    """A dataclass whose fields are tensors, other such dataclasses, tuples of either, or anything that stays as it is."""

    def to(self, device: torch.device | str) -> Self:
        """A copy on a device; copies from pinned memory are asynchronous."""

        def move(part: Any) -> Any:
            return part.to(device, non_blocking=part.is_pinned()) if isinstance(part, Tensor) else part.to(device)

        return self._map_tensors(move)

    def pin_memory(self) -> Self:
        """A copy in pinned memory."""
        return self._map_tensors(lambda part: part.pin_memory())

    def _map_tensors(self, change: Callable[[Any], Any]) -> Self:
        def apply(value: Any) -> Any:
            if isinstance(value, Tensor | TensorFields):
                return change(value)
            return tuple(map(apply, value)) if isinstance(value, tuple) else value

        return type(self)(**{field.name: apply(getattr(self, field.name)) for field in fields(self)})  # type: ignore[arg-type]


@dataclass(frozen=True)
class PackedTokens(TensorFields):
    """ids [T], starts [B+1]; text b is ids[starts[b]:starts[b+1]].

    `side` is query, document or pair: a batch never mixes them. `segments` [T] are token types, None for all zero. `no_attend_mask` [T]
    marks tokens that attend but are not attended to (ColBERT's query augmentation), None for no such tokens; `precomputed_keys` are the
    rows of all others with their own starts [B+1], if the mask was known on the host. `lengths` are the text lengths, on the host.
    `order` [B] are the rows that restore the original order of the texts after `sort_by_length`; None if it was not changed. `experts` are
    those whose towers read the repetitions that `repeat` makes.
    """

    ids: Tensor
    starts: Tensor
    side: str
    lengths: tuple[int, ...]
    segments: Tensor | None = None
    no_attend_mask: Tensor | None = None
    precomputed_keys: tuple[Tensor, Tensor] | None = None
    order: Tensor | None = None
    experts: tuple[int, ...] | None = None

    @classmethod
    def from_lists(cls, texts: Sequence[Sequence[int]], side: str, no_attend_counts: Sequence[int] | None = None) -> Self:
        """Build from id lists; `no_attend_counts` are the numbers of tokens at the end of each text that are not attended to."""
        lengths = np.fromiter(map(len, texts), np.int64, len(texts))
        ids = np.fromiter(chain.from_iterable(texts), np.int64, int(lengths.sum()))
        return cls.from_arrays(ids, lengths, side, no_attend_counts)

    @classmethod
    def from_arrays(cls, ids: Numbers, lengths: Numbers, side: str, no_attend_counts: npt.ArrayLike | None = None) -> Self:
        """Build from the ids [T] of all texts end to end and their lengths [B]."""
        assert side in SIDES, side
        starts, no_attend = np.concatenate([[0], lengths.cumsum()]).astype(np.int64), None
        if no_attend_counts is not None and np.any(no_attend_counts):
            attended_ends = starts[1:] - np.asarray(no_attend_counts)
            no_attend = torch.from_numpy(np.arange(len(ids)) >= np.repeat(attended_ends, lengths))
        id_tensor = torch.from_numpy(ids.astype(np.int64, copy=False))
        return cls(id_tensor, torch.from_numpy(starts), side, tuple(lengths.tolist()), no_attend_mask=no_attend)

    def __len__(self) -> int:
        return len(self.starts) - 1

    @cached_property
    def layout(self) -> PackedLayout:
        """The boundaries of the texts, for attention."""
        return PackedLayout(self.lengths, self.starts, self.no_attend_mask, self.precomputed_keys)

    @cached_property
    def layer_calls(self) -> list[Any]:
        """What the embeddings of a model of transformers leave for its layers: the states, arguments and options of each call."""
        return []

    def text_indices(self) -> Tensor:
        """[T] the index of each token's text."""
        return self.layout.text_indices

    def positions(self) -> Tensor:
        """[T] the position of each token in its text, from 0."""
        return self.layout.positions

    def pin_memory(self) -> Self:
        """A copy in pinned memory, with the rows of the keys, which the device would have to wait for."""
        if self.no_attend_mask is not None and self.precomputed_keys is None:
            return replace(self, precomputed_keys=find_visible_keys(self.no_attend_mask, self.starts)).pin_memory()
        return super().pin_memory()

    def repeat(self, experts: tuple[int, ...]) -> Self:
        """These texts once for each of some experts, the repetitions one after the other."""
        count, shifts = len(experts), torch.arange(len(experts), device=self.ids.device)[:, None] * len(self.ids)
        starts = torch.cat([self.starts[:1], (self.starts[1:] + shifts).flatten()])
        segments, no_attend = (None if part is None else part.repeat(count) for part in (self.segments, self.no_attend_mask))
        changes = {"segments": segments, "no_attend_mask": no_attend, "precomputed_keys": None, "order": None, "experts": experts}
        return replace(self, ids=self.ids.repeat(count), starts=starts, lengths=self.lengths * count, **changes)

    def sort_by_length(self) -> Self:
        """These tokens with the texts sorted by length, and the `order` that restores the original; a sorted batch is returned as it is."""
        lengths, device = np.asarray(self.lengths, dtype=np.int64), self.ids.device
        if self.order is not None or (lengths[1:] >= lengths[:-1]).all():
            return self
        rows = np.argsort(lengths, kind="stable")
        order, sizes = np.empty_like(rows), lengths[rows]
        order[rows] = np.arange(len(rows))
        starts = np.concatenate([[0], sizes.cumsum()])
        sorted_layout = PackedLayout(tuple(sizes.tolist()), copy_to_device(starts, device))
        first = self.starts.index_select(0, copy_to_device(rows, device))  # [B] start of each text among the unsorted tokens
        tokens = sorted_layout.positions + first.index_select(0, sorted_layout.text_indices)
        segments, no_attend = (None if part is None else part.index_select(0, tokens) for part in (self.segments, self.no_attend_mask))
        return replace(
            self,
            ids=self.ids.index_select(0, tokens),
            starts=sorted_layout.starts,
            lengths=sorted_layout.lengths,
            segments=segments,
            no_attend_mask=no_attend,
            precomputed_keys=None,
            order=copy_to_device(order, device),
        )
