"""Token vectors of texts of any length, packed end to end, for late interaction."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from moeir.artifacts import memmap
from moeir.artifacts.array_folder import ArrayFolder
from moeir.indexes.two_step import QueryBlock
from moeir.indexes.vector_store import VectorShards, VectorStore, chunk_slices
from moeir.kernels.memory import available_bytes

BYTES_PER_LOAD = 2**28  # of vectors copied to a CUDA device at a time if they do not all fit


@dataclass(frozen=True)
class TokenSpans:
    """Some texts in any order, as ranges of token rows in `vectors` [T, D] float16.

    `starts` and `lengths` int64 [n] are on the device of the vectors, `host_lengths` [n] are the lengths again, on the host.
    """

    vectors: VectorStore | torch.Tensor
    starts: torch.Tensor
    lengths: torch.Tensor
    host_lengths: np.ndarray

    def pad(self, first: int, last: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens [N, M, D] of texts `first` to `last` (exclusive), padded with each text's last token, and the mask [N, M] of real ones."""
        longest = int(self.host_lengths[first:last].max())
        positions, real = padded_positions(self.starts[first:last], self.lengths[first:last], longest)
        vectors = self.vectors[positions.flatten()]
        return vectors.view(*positions.shape, -1), real.to(vectors.device)


class TokenShards(VectorShards):
    """Token vectors to be indexed; text b has rows starts[b] to starts[b + 1], starts int64 [N + 1]."""

    def __init__(self) -> None:
        super().__init__()
        self.starts = torch.zeros(1, dtype=torch.int64)

    def add_texts(self, shard: Any, row: int) -> None:
        """Append the texts of one shard, the first of which is `row`; DataError for values that float16 cannot hold."""
        starts = shard.starts.cpu().long()
        self.add(shard.vectors[: int(starts[-1])], partial(describe_token, starts, row))
        self.starts = torch.cat([self.starts, self.starts[-1] + starts[1:]])

    def save_starts(self, folder: Path) -> dict[str, Any]:
        """Write `starts.npy`; returns the entries for `engine.json`."""
        memmap.save_array(folder / "starts.npy", self.starts.numpy())
        return {"dimension": self.width, "vectors": len(self), "longest": self.max_norm, "lost": self.max_bf16_error}


class TokenVectorStore:
    """Text b has rows starts[b] to starts[b + 1] of the vectors [T, D] float16; starts int64 [N + 1]."""

    def __init__(self, starts: torch.Tensor, vectors: VectorStore) -> None:
        self.starts, self.vectors = starts, vectors

    @classmethod
    def from_files(cls, arrays: ArrayFolder, settings: dict[str, Any], device: torch.device) -> Self:
        """From the memory maps of `starts` and `vectors`."""
        vectors = arrays.read("vectors", np.float16, (settings["vectors"], settings["dimension"]))
        starts = arrays.read_offsets("starts", settings["documents"], len(vectors), "engine.json and vectors.npy")
        return cls(torch.from_numpy(starts), VectorStore(vectors, device, settings["longest"], settings["lost"]))

    def __len__(self) -> int:
        return len(self.starts) - 1

    @cached_property
    def lengths(self) -> torch.Tensor:
        """Tokens of each text, int64 [N]."""
        return self.starts.diff()

    def token_vectors(self, row: int) -> np.ndarray:
        """Vectors float16 [M, D] of one text."""
        vectors: np.ndarray = self.vectors[slice(int(self.starts[row]), int(self.starts[row + 1]))].cpu().numpy()
        return vectors

    def token_blocks(self, tokens: int, texts: slice) -> Iterator[tuple[int, int]]:
        """Cut texts into ranges (first, last) of at most `tokens` tokens, each at least one text."""
        starts, first = self.starts.numpy(), texts.start
        while first < texts.stop:
            last = max(first + 1, min(texts.stop, int(np.searchsorted(starts, starts[first] + tokens, side="right")) - 1))
            yield first, last
            first = last

    def select(self, rows: torch.Tensor) -> TokenSpans:
        """The texts `rows` int64 [n] (on the host), in that order."""
        starts, lengths, home = self.starts[rows], self.lengths[rows], self.vectors.storage_device
        return TokenSpans(self.vectors, starts.to(home), lengths.to(home), lengths.numpy())

    def iterate_by_length(self) -> Iterator[tuple[torch.Tensor, TokenSpans]]:
        """All texts that have tokens, shortest first: their rows int64 [n] on the device, and the texts.

        One item, unless the vectors do not fit on the CUDA device: then several parts, each copied there.
        """
        device = self.vectors.device
        if self.vectors.storage_device.type == device.type:
            yield self._by_length
            return
        most = min(BYTES_PER_LOAD, available_bytes(device) // 4)
        for first, last in self.token_blocks(max(1, most // (2 * self.vectors.width)), slice(0, len(self))):
            if not len(rows := self._rows_by_length(first, last)):
                continue
            begin, end = int(self.starts[first]), int(self.starts[last])
            starts, lengths = self.starts[rows] - begin, self.lengths[rows]
            yield rows.to(device), TokenSpans(self.vectors[slice(begin, end)], starts.to(device), lengths.to(device), lengths.numpy())

    @cached_property
    def _by_length(self) -> tuple[torch.Tensor, TokenSpans]:
        rows = self._rows_by_length(0, len(self))
        return rows.to(self.vectors.device), self.select(rows)

    def _rows_by_length(self, first: int, last: int) -> torch.Tensor:
        """Rows from `first` to `last` (exclusive) of texts that have tokens, shortest first."""
        lengths = self.starts[first : last + 1].diff()
        rows = lengths.argsort(stable=True)
        return rows[lengths[rows] > 0] + first


def query_blocks(queries: Any, step: int, device: torch.device) -> Iterator[QueryBlock]:
    """Blocks of `step` queries of similar length, without queries that have no tokens."""
    for part, positions, real in query_positions(queries.starts.cpu(), step):
        vectors = queries.vectors.detach()[positions.to(queries.vectors.device)].to(device).float()
        yield QueryBlock(part.numpy(), vectors.masked_fill(~real[..., None].to(device), 0.0))  # 0 before the sum


def query_positions(starts: torch.Tensor, step: int) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Of `step` queries of similar length at a time, those with tokens: their rows, and `padded_positions` of their tokens."""
    lengths = starts.diff()
    query_rows = lengths.argsort(stable=True)
    query_rows = query_rows[lengths[query_rows] > 0]
    for part in (query_rows[cut] for cut in chunk_slices(len(query_rows), step)):
        yield part, *padded_positions(starts[part], lengths[part])


def describe_token(starts: torch.Tensor, first: int, token: int) -> str:
    """A token of a shard, in messages: its row, `first` being that of the shard's first text, and its number in the text."""
    row = int(torch.searchsorted(starts, token, right=True)) - 1
    return f"row {first + row}: its token vector {token - int(starts[row])}"


def padded_positions(starts: torch.Tensor, lengths: torch.Tensor, longest: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Token rows int64 [B, L] of packed texts, padded with the last one, and the mask of real ones, on the device of `starts`.

    >>> padded_positions(torch.tensor([0, 2]), torch.tensor([2, 3]))[0].tolist()
    [[0, 1, 1], [2, 3, 4]]
    """
    offsets = torch.arange(int(lengths.max()) if longest is None else longest, device=starts.device)
    real = offsets < lengths[:, None]
    return starts[:, None] + offsets.minimum(lengths[:, None] - 1), real
