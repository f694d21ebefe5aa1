"""The float16 vectors of an index: in shards while building, one memory map when opened, on the device if they fit."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from moeir.artifacts import memmap
from moeir.artifacts.journals import AppendableNpy
from moeir.errors import ArtifactError, DataError
from moeir.indexes import simd_loops
from moeir.kernels.memory import available_bytes

ROWS_AT_ONCE = 2**14
SEARCH_WORKSPACE = 2**32  # bytes of CUDA memory reserved for a search's scores, or half of what is available if less


class VectorStore:
    """Vectors d [N, D] float16, with max_norm, the largest ‖d‖, and max_bf16_error, the largest ‖d − bfloat16(d)‖.

    On CUDA they are copied to the device if they fit, with `extra_bytes_per_row` more bytes each for the engine's own arrays; otherwise
    they stay on the host, and reads go through pinned memory.
    """

    def __init__(self, device: torch.device, extra_bytes_per_row: int = 0) -> None:
        self.device, self._extra_bytes_per_row = device, extra_bytes_per_row
        self.max_norm, self.max_bf16_error = 0.0, 0.0
        self._shards: list[torch.Tensor] = []
        self._resident: torch.Tensor | None = None

    def __len__(self) -> int:
        return sum(len(shard) for shard in self._shards)

    def __getitem__(self, rows: slice | torch.Tensor) -> torch.Tensor:
        """Rows by slice or by number (best on `storage_device`), on the device."""
        if self.device.type == "cuda":
            all_rows = self._all_rows()
            vectors = all_rows[rows if isinstance(rows, slice) else rows.to(all_rows.device)]
            if not vectors.is_cuda:
                vectors = vectors.pin_memory().to(self.device, non_blocking=True)
                memmap.note_pages_read(vectors.nbytes)
            return vectors
        if isinstance(rows, slice):
            pieces = [shard[part] for shard, part, _ in self._shard_slices(rows)]
            return pieces[0] if len(pieces) == 1 else torch.cat([torch.empty(0, self.width, dtype=torch.float16), *pieces])
        if len(self._shards) == 1:
            return self._shards[0][rows]
        vectors = torch.empty(len(rows), self.width, dtype=torch.float16)
        for first, shard in self.shards():
            is_in_shard = (rows >= first) & (rows < first + len(shard))
            vectors[is_in_shard] = shard[rows[is_in_shard] - first]
        return vectors

    def load_to_device(self) -> None:
        """On CUDA: copy them to the device now, if they fit there."""
        if self.device.type == "cuda":
            self._all_rows()

    @property
    def storage_device(self) -> torch.device:
        """Where the vectors are, and row numbers should be: the device if they fit there, otherwise the host."""
        return self._all_rows().device if self.device.type == "cuda" else self.device

    @property
    def width(self) -> int:
        return self._shards[0].shape[1] if self._shards else 0

    def check_width(self, width: int) -> None:
        """Refuse vectors of another dimension."""
        if self._shards:
            check_width(width, self.width)

    def add(self, vectors: torch.Tensor, describe_row: Callable[[int], str]) -> None:
        """Append vectors [B, D]; DataError if float16 cannot hold one, named by `describe_row` (row of the shard)."""
        self.check_width(vectors.shape[1])
        shard = vectors.detach().to("cpu", torch.float16).contiguous()
        for first in range(0, len(shard), ROWS_AT_ONCE):
            part = as_uint16(shard[first : first + ROWS_AT_ONCE])
            norms, lost = np.empty(len(part)), np.empty(len(part))
            simd_loops.norms_and_bf16_error(part, norms, lost)
            if np.isnan(norms).any():
                raise DataError(f"{describe_row(first + int(np.isnan(norms).argmax()))} holds NaN, infinity or more than float16 can hold")
            self.max_norm, self.max_bf16_error = max(self.max_norm, float(norms.max())), max(self.max_bf16_error, float(lost.max()))
            memmap.note_pages_read(part.nbytes)
        self._shards.append(shard)
        self._resident = None

    def save(self, path: Path) -> None:
        """Write one `.npy`, shard by shard."""
        target = AppendableNpy(path, np.float16, self.width)
        for shard in self._shards:
            for first in range(0, len(shard), ROWS_AT_ONCE):
                part = shard[first : first + ROWS_AT_ONCE].numpy()
                target.append(part)
                memmap.note_pages_read(part.nbytes)
        target.close()

    def restore(self, vectors: np.ndarray, max_norm: float, max_bf16_error: float = 0.0) -> None:
        """Use the memory map of a saved file."""
        self._shards, self.max_norm, self.max_bf16_error = [torch.from_numpy(np.asarray(vectors))], max_norm, max_bf16_error

    def shards(self) -> Iterator[tuple[int, torch.Tensor]]:
        """Each shard [n, D], in place, with the number of its first row."""
        first = 0
        for shard in self._shards:
            yield first, shard
            first += len(shard)

    def reader(self, rows: int, coarse: bool) -> Callable[[slice], torch.Tensor]:
        """A function that reads slices of at most `rows` rows -> [≥ n, D] float32, or bfloat16 if coarse.

        It reuses its buffer: a result is valid until the next read, and rows from n on are undefined.
        """
        dtype = torch.bfloat16 if coarse else torch.float32
        if self.device.type == "cuda":
            return lambda part: self[part].to(dtype)
        buffer = torch.zeros(max(rows, 1), self.width, dtype=dtype)

        def read(part: slice) -> torch.Tensor:
            for shard, shard_rows, first in self._shard_slices(part):
                target = buffer[first : first + shard_rows.stop - shard_rows.start]
                if coarse:
                    simd_loops.to_bfloat16(as_uint16(shard[shard_rows]), as_uint16(target))
                else:
                    target.copy_(shard[shard_rows])
                memmap.note_pages_read(2 * target.numel())
            return buffer

        return read

    def _shard_slices(self, rows: slice) -> Iterator[tuple[torch.Tensor, slice, int]]:
        """The shards of a slice: shard, its rows in the slice, and how many rows of the slice come before them."""
        start, stop, _ = rows.indices(len(self))
        for first, shard in self.shards():
            shard_rows = slice(max(start - first, 0), min(stop - first, len(shard)))
            if shard_rows.start < shard_rows.stop:
                yield shard, shard_rows, first + shard_rows.start - start

    def _all_rows(self) -> torch.Tensor:
        """On CUDA: all vectors as one tensor, on the device if they fit there."""
        if self._resident is None:
            if len(self._shards) != 1:
                self._shards = [torch.cat(self._shards)]
            self._resident = self._shards[0]
            available = available_bytes(self.device)
            if self._resident.nbytes + self._extra_bytes_per_row * len(self._resident) <= available - min(SEARCH_WORKSPACE, available // 2):
                self._resident = self._resident.to(self.device)
                memmap.note_pages_read(self._resident.nbytes)
        return self._resident


def check_width(width: int, index_width: int) -> None:
    """Refuse vectors of another dimension than those of the index."""
    if width != index_width:
        raise ArtifactError(f"vectors of dimension {width}, but the index holds dimension {index_width}: made by another checkpoint?")


def as_uint16(numbers: torch.Tensor) -> np.ndarray:
    """A view of float16 or bfloat16 numbers as uint16 bits."""
    bit_array: np.ndarray = numbers.view(torch.int16).numpy().view(np.uint16)
    return bit_array
