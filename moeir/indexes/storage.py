"""float16 vectors of an index: in shards while building, one memory map when opened, on the device if they fit."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from moeir.artifacts import mapping
from moeir.artifacts.journals import GrowingArray
from moeir.errors import ArtifactError, DataError
from moeir.indexes import halves
from moeir.kernels.memory import available_bytes

ROWS_AT_ONCE = 2**14
WORKSPACE = 2**32  # bytes of a CUDA device that a search may fill with scores, or half of what is available where that is less


class Vectors:
    """Vectors [N, D] float16, the norm of the longest, and the most that one loses when it is rounded to bfloat16.

    On CUDA they are copied to the device if they fit, with `beside` more bytes for each that an engine keeps there; else they stay on the
    host, and what is read of them goes through pinned memory.
    """

    def __init__(self, device: torch.device, beside: int = 0) -> None:
        self.device, self._beside = device, beside
        self.longest, self.lost = 0.0, 0.0
        self._shards: list[torch.Tensor] = []
        self._resident: torch.Tensor | None = None

    def __len__(self) -> int:
        return sum(len(shard) for shard in self._shards)

    def __getitem__(self, rows: slice | torch.Tensor) -> torch.Tensor:
        """Rows by slice or by number (best on `home`), on the device."""
        if self.device.type == "cuda":
            whole = self._whole()
            found = whole[rows if isinstance(rows, slice) else rows.to(whole.device)]
            if not found.is_cuda:
                found = found.pin_memory().to(self.device, non_blocking=True)
                mapping.read(found.nbytes)
            return found
        if isinstance(rows, slice):
            pieces = [shard[part] for shard, part, _ in self._pieces(rows)]
            return pieces[0] if len(pieces) == 1 else torch.cat([torch.empty(0, self.width, dtype=torch.float16), *pieces])
        if len(self._shards) == 1:
            return self._shards[0][rows]
        found = torch.empty(len(rows), self.width, dtype=torch.float16)
        for first, shard in self.shards():
            own = (rows >= first) & (rows < first + len(shard))
            found[own] = shard[rows[own] - first]
        return found

    def load(self) -> None:
        """On CUDA: copy them to the device now, if they fit there."""
        if self.device.type == "cuda":
            self._whole()

    @property
    def home(self) -> torch.device:
        """Where the vectors lie, and the numbers of rows should: the device if they fit there, else the host."""
        return self._whole().device if self.device.type == "cuda" else self.device

    @property
    def width(self) -> int:
        return self._shards[0].shape[1] if self._shards else 0

    def check_width(self, width: int) -> None:
        """Refuse vectors of another dimension."""
        if self._shards and width != self.width:
            raise ArtifactError(f"vectors of dimension {width}, but the index holds dimension {self.width}: made by another checkpoint?")

    def add(self, vectors: torch.Tensor, owner: Callable[[int], str]) -> None:
        """Append vectors [B, D]; what float16 cannot hold is refused in the words of `owner` (of a row of the shard)."""
        self.check_width(vectors.shape[1])
        shard = vectors.detach().to("cpu", torch.float16).contiguous()
        for first in range(0, len(shard), ROWS_AT_ONCE):
            part = bits(shard[first : first + ROWS_AT_ONCE])
            norms, lost = np.empty(len(part)), np.empty(len(part))
            halves.measure(part, norms, lost)
            if np.isnan(norms).any():
                raise DataError(f"{owner(first + int(np.isnan(norms).argmax()))} holds NaN, infinity or more than float16 can hold")
            self.longest, self.lost = max(self.longest, float(norms.max())), max(self.lost, float(lost.max()))
            mapping.read(part.nbytes)
        self._shards.append(shard)
        self._resident = None

    def save(self, path: Path) -> None:
        """Write one `.npy`, shard by shard."""
        target = GrowingArray(path, np.float16, self.width)
        for shard in self._shards:
            for first in range(0, len(shard), ROWS_AT_ONCE):
                part = shard[first : first + ROWS_AT_ONCE].numpy()
                target.append(part)
                mapping.read(part.nbytes)
        target.close()

    def restore(self, vectors: np.ndarray, longest: float, lost: float = 0.0) -> None:
        """Take the memory map of a saved file."""
        self._shards, self.longest, self.lost = [torch.from_numpy(np.asarray(vectors))], longest, lost

    def shards(self) -> Iterator[tuple[int, torch.Tensor]]:
        """Each shard [n, D], where it lies, with the number of its first row."""
        first = 0
        for shard in self._shards:
            yield first, shard
            first += len(shard)

    def reader(self, rows: int, coarse: bool) -> Callable[[slice], torch.Tensor]:
        """Reads stretches of at most `rows` rows -> [≥ n, D] float32, or bfloat16 if coarse, until it reads the next; the rest is void."""
        kind = torch.bfloat16 if coarse else torch.float32
        if self.device.type == "cuda":
            return lambda part: self[part].to(kind)
        place = torch.zeros(max(rows, 1), self.width, dtype=kind)

        def read(part: slice) -> torch.Tensor:
            for shard, own, first in self._pieces(part):
                here = place[first : first + own.stop - own.start]
                if coarse:
                    halves.to_bfloat16(bits(shard[own]), bits(here))
                else:
                    here.copy_(shard[own])
                mapping.read(2 * here.numel())
            return place

        return read

    def _pieces(self, rows: slice) -> Iterator[tuple[torch.Tensor, slice, int]]:
        """The shards that hold a stretch: shard, its own rows, and how many of the stretch come before them."""
        start, stop, _ = rows.indices(len(self))
        for first, shard in self.shards():
            own = slice(max(start - first, 0), min(stop - first, len(shard)))
            if own.start < own.stop:
                yield shard, own, first + own.start - start

    def _whole(self) -> torch.Tensor:
        """On CUDA: all of them, on the device if they fit there."""
        if self._resident is None:
            if len(self._shards) != 1:
                self._shards = [torch.cat(self._shards)]
            self._resident = self._shards[0]
            available = available_bytes(self.device)
            if self._resident.nbytes + self._beside * len(self._resident) <= available - min(WORKSPACE, available // 2):
                self._resident = self._resident.to(self.device)
                mapping.read(self._resident.nbytes)
        return self._resident


def bits(numbers: torch.Tensor) -> np.ndarray:
    """The bits of float16 or bfloat16 numbers, uint16, where they lie."""
    found: np.ndarray = numbers.view(torch.int16).numpy().view(np.uint16)
    return found
