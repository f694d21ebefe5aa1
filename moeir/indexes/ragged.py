"""Token vectors of texts of any length, packed end to end, as late interaction needs them."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from moeir.artifacts import mapping
from moeir.indexes import halves
from moeir.indexes.candidates import UNDERFLOW, Block, rounding, slices
from moeir.indexes.lanes import LANES
from moeir.indexes.storage import Vectors, bits
from moeir.kernels.memory import available_bytes

BYTES_LOADED = 2**28  # of vectors that are copied to a CUDA device at a time, where they do not all fit there


@dataclass(frozen=True)
class Texts:
    """Some texts in an order of their own: where their tokens lie in `vectors` [T, D] float16.

    `starts` and `lengths` int64 [n] are on the device that holds the vectors, `sizes` [n] are the lengths again, on the host.
    """

    vectors: Vectors | torch.Tensor
    starts: torch.Tensor
    lengths: torch.Tensor
    sizes: np.ndarray

    def padded(self, first: int, last: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens [N, M, D] of texts `first` to `last` (not included), the last of each repeated as padding, and which are real [N, M]."""
        longest = int(self.sizes[first:last].max())
        positions, real = spread(self.starts[first:last], self.lengths[first:last], longest)
        found = self.vectors[positions.flatten()]
        return found.view(*positions.shape, -1), real.to(found.device)


class Ragged:
    """Text b has rows starts[b] to starts[b + 1] of the vectors [T, D] float16; starts int64 [N + 1]."""

    def __init__(self, device: torch.device) -> None:
        self.vectors = Vectors(device)
        self.starts = torch.zeros(1, dtype=torch.int64)
        self._by_length: tuple[torch.Tensor, Texts] | None = None

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> torch.Tensor:
        """Tokens of each text, int64 [N]."""
        return self.starts.diff()

    def add(self, shard: Any) -> None:
        """Append the texts of one shard; what float16 cannot hold is refused."""
        rows, starts = len(self), shard.starts.cpu().long()

        def owner(token: int) -> str:
            row = int(torch.searchsorted(starts, token, right=True)) - 1
            return f"row {rows + row}: its token vector {token - int(starts[row])}"

        self.vectors.add(shard.vectors[: int(starts[-1])], owner)
        self.starts, self._by_length = torch.cat([self.starts, self.starts[-1] + starts[1:]]), None

    def facts(self) -> dict[str, Any]:
        """What `engine.json` holds of it."""
        extent = {"dimension": self.vectors.width, "vectors": len(self.vectors)}
        return {**extent, "longest": self.vectors.longest, "lost": self.vectors.lost}

    def save(self, folder: Path) -> None:
        """`vectors.npy`, shard by shard; the caller writes `starts`."""
        self.vectors.save(folder / "vectors.npy")

    def restore(self, arrays: dict[str, np.ndarray], settings: dict[str, Any]) -> None:
        """Take the memory maps of `starts` and `vectors`."""
        self.starts = torch.from_numpy(np.asarray(arrays["starts"]))
        self.vectors.restore(arrays["vectors"], settings["longest"], settings["lost"])
        if int(self.starts[-1]) != len(self.vectors):
            raise ValueError(f"{len(self.vectors)} vectors, starts.npy counts {int(self.starts[-1])}")

    def tokens_of(self, row: int) -> np.ndarray:
        """Vectors float16 [M, D] of one text."""
        vectors: np.ndarray = self.vectors[slice(int(self.starts[row]), int(self.starts[row + 1]))].cpu().numpy()
        return vectors

    def stretches(self, tokens: int, documents: int | None = None) -> Iterator[tuple[int, int]]:
        """Cut the texts into stretches (first, last) of at most `tokens` tokens, each at least one text.

        >>> texts = Ragged(torch.device("cpu")); texts.starts = torch.tensor([0, 2, 4, 9])
        >>> list(texts.stretches(4))
        [(0, 2), (2, 3)]
        """
        starts, first = self.starts.numpy(), 0
        while first < len(self):
            last = max(first + 1, int(np.searchsorted(starts, starts[first] + tokens, side="right")) - 1)
            last = min(last, first + documents) if documents else last
            yield first, last
            first = last

    def select(self, rows: torch.Tensor) -> Texts:
        """The texts `rows` int64 [n] of the host, in that order."""
        starts, lengths, home = self.starts[rows], self.lengths[rows], self.vectors.home
        return Texts(self.vectors, starts.to(home), lengths.to(home), lengths.numpy())

    def read_by_length(self) -> Iterator[tuple[torch.Tensor, Texts]]:
        """All texts that have tokens, shortest first: their rows int64 [n] on the device, and the texts.

        They come at once, from wherever the vectors lie, and from a CUDA device that does not hold them in parts, each copied there whole.
        """
        device = self.vectors.device
        if self.vectors.home.type == device.type:
            if self._by_length is None:
                rows = self._shortest_first(0, len(self))
                self._by_length = rows.to(device), self.select(rows)
            yield self._by_length
            return
        most = min(BYTES_LOADED, available_bytes(device) // 4)
        for first, last in self.stretches(max(1, most // (2 * self.vectors.width))):
            if not len(rows := self._shortest_first(first, last)):
                continue
            begin, end = int(self.starts[first]), int(self.starts[last])
            starts, lengths = self.starts[rows] - begin, self.lengths[rows]
            yield rows.to(device), Texts(self.vectors[slice(begin, end)], starts.to(device), lengths.to(device), lengths.numpy())

    def _shortest_first(self, first: int, last: int) -> torch.Tensor:
        """Rows `first` to `last` (not included) of texts that have tokens."""
        lengths = self.starts[first : last + 1].diff()
        rows = lengths.argsort(stable=True)
        return rows[lengths[rows] > 0] + first

    def exact(self, block: Block, query: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Σ_i max_j of exact products, on a processor: query of the block [P], text [P] -> float64 [P], −∞ without tokens."""
        norms = block.vectors.double().norm(dim=2)
        bounds = 2.0 * (rounding(block.vectors.shape[2] + 8) * norms * self.vectors.longest + UNDERFLOW)
        bounds = bounds.masked_fill(~block.vectors.any(dim=2), -1.0).numpy()   # a token of zeros, padding or not, adds exactly 0
        scores, texts, number, ends = np.full(len(rows), -np.inf), rows.numpy(), query.numpy(), self.starts.numpy()
        tokens = turned(block.vectors)
        for first, shard in self.vectors.shards():
            own_ends = ends - first
            for own in mapping.parted(np.flatnonzero((ends[texts] >= first) & (ends[texts] < first + len(shard)))):
                found = np.empty(len(own))
                halves.late_products(bits(shard), own_ends, tokens, bounds, number[own], texts[own], found)
                scores[own] = found
        return torch.from_numpy(scores)


def turned(queries: torch.Tensor) -> np.ndarray:
    """Tokens of queries [Q, L, D], 32 beside one another, zeros behind the last: float32 [Q, L/32, D, 32]."""
    count, length, width = queries.shape
    blocks = -(-length // LANES)
    padded = torch.zeros(count, blocks * LANES, width)
    padded[:, :length] = queries
    beside: np.ndarray = padded.view(count, blocks, LANES, width).transpose(2, 3).contiguous().numpy()
    return beside


def queries_in_blocks(queries: Any, step: int, device: torch.device) -> Iterator[Block]:
    """Queries that have tokens, those of like length together, `step` at once."""
    starts = queries.starts.cpu()
    lengths = starts.diff()
    lines = lengths.argsort(stable=True)
    lines = lines[lengths[lines] > 0]
    for part in (lines[cut] for cut in slices(len(lines), step)):
        positions, real = spread(starts[part], lengths[part])
        vectors = queries.vectors.detach()[positions.to(queries.vectors.device)].to(device).float()
        yield Block(part.numpy(), vectors.masked_fill(~real[..., None].to(device), 0.0))  # 0 before the sum


def spread(starts: torch.Tensor, lengths: torch.Tensor, longest: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Positions int64 [B, L] of the tokens of packed texts, the last one repeated, and which are real, on the device of `starts`.

    >>> spread(torch.tensor([0, 2]), torch.tensor([2, 3]))[0].tolist()
    [[0, 1, 1], [2, 3, 4]]
    """
    steps = torch.arange(int(lengths.max()) if longest is None else longest, device=starts.device)
    real = steps < lengths[:, None]
    return starts[:, None] + steps.minimum(lengths[:, None] - 1), real
