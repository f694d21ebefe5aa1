"""The float16 vectors of an index: shards while it is built, one memory map when it is opened, on the device if they fit."""

from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from moeir.artifacts import memmap
from moeir.artifacts.journals import AppendableNpy
from moeir.errors import ArtifactError, DataError
from moeir.indexes import simd_loops
from moeir.kernels.memory import available_bytes

ROWS_AT_ONCE, PAIRS_AT_ONCE = 2**14, 2**10
PLAIN_NUMBERS = 2**25  # that an opened index reads with torch alone, a second's work, before it takes compiled loops
NUMBERS_IN_CACHE = 2**17  # that are converted at a time
SEARCH_WORKSPACE = 2**32  # bytes of CUDA memory reserved for a search's scores, or half of what is available if less


class VectorShards:
    """Vectors d to be indexed, in shards, with max_norm, the largest ‖d‖, and max_bf16_error, the largest ‖d − bfloat16(d)‖."""

    def __init__(self) -> None:
        self.width, self.max_norm, self.max_bf16_error = 0, 0.0, 0.0
        self._shards: list[torch.Tensor] = []

    def __len__(self) -> int:
        return sum(map(len, self._shards))

    def add(self, vectors: torch.Tensor, describe_row: Callable[[int], str]) -> None:
        """Append vectors [B, D]; DataError if float16 cannot hold one, named by `describe_row` (row of the shard)."""
        if self._shards:
            check_width(vectors.shape[1], self.width)
        shard = vectors.detach().to("cpu", torch.float16).contiguous()
        for first in range(0, len(shard), ROWS_AT_ONCE):
            part = shard[first : first + ROWS_AT_ONCE]
            norms = torch.linalg.vector_norm(part, dim=1, dtype=torch.float64)
            if len(rows := (~norms.isfinite()).nonzero()):
                raise DataError(f"{describe_row(first + int(rows[0]))} holds NaN, infinity or more than float16 can hold")
            lost = torch.linalg.vector_norm(part.double() - part.float().bfloat16().double(), dim=1)
            self.max_norm, self.max_bf16_error = max(self.max_norm, float(norms.max())), max(self.max_bf16_error, float(lost.max()))
            memmap.note_pages_read(part.nbytes)
        self._shards.append(shard)
        self.width = shard.shape[1]

    def select(self, rows: torch.Tensor) -> torch.Tensor:
        """The vectors `rows` int64 [n], in that order: float16 [n, D]."""
        vectors, first = torch.empty(len(rows), self.width, dtype=torch.float16), 0
        for shard in self._shards:
            positions = ((rows >= first) & (rows < first + len(shard))).nonzero()[:, 0]
            if len(positions):
                vectors.index_copy_(0, positions, shard.index_select(0, rows[positions] - first))
            first += len(shard)
        memmap.note_pages_read(vectors.nbytes)
        return vectors

    def blocks(self, order: torch.Tensor | None = None) -> Iterator[torch.Tensor]:
        """All vectors in blocks float16 [≤ ROWS_AT_ONCE, D], in this order [N] if given."""
        return map(self.select, (torch.arange(len(self)) if order is None else order).split(ROWS_AT_ONCE))

    def save(self, path: Path, order: torch.Tensor | None = None) -> None:
        """Write one `.npy`, block by block."""
        target = AppendableNpy(path, np.float16, self.width)
        for block in self.blocks(order):
            target.append(block.numpy())
        target.close()


class VectorStore:
    """Vectors d [N, D] float16 of an opened index; `max_norm` and `max_bf16_error` as in `VectorShards`.

    On CUDA they are copied to the device if they fit; otherwise they stay on the host, and reads go through pinned memory.
    """

    def __init__(self, rows: np.ndarray, device: torch.device, max_norm: float, max_bf16_error: float = 0.0) -> None:
        self._rows, self.device = torch.from_numpy(np.asarray(rows)), device
        self.max_norm, self.max_bf16_error = max_norm, max_bf16_error
        self._plain_numbers = 0

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def width(self) -> int:
        return self._rows.shape[1]

    @cached_property
    def _stored(self) -> torch.Tensor:
        """All vectors; on CUDA copied to the device at first use, if they fit there."""
        if self.device.type == "cuda" and self.fits(available_bytes(self.device)):
            memmap.note_pages_read(self._rows.nbytes)
            return self._rows.to(self.device)
        return self._rows

    def fits(self, available: int) -> bool:
        """Whether all vectors fit in so many bytes of CUDA memory, beside the scores of a search and the engine's own arrays."""
        return self._rows.nbytes <= available - min(SEARCH_WORKSPACE, available // 2)

    def load_to_device(self) -> None:
        """On CUDA: copy the vectors to the device now, if they fit there."""
        _ = self._stored

    @property
    def storage_device(self) -> torch.device:
        """Where the vectors are, and row numbers should be: the device if they fit there, otherwise the host."""
        return self._stored.device

    def __getitem__(self, rows: slice | torch.Tensor) -> torch.Tensor:
        """Rows by slice or by number (best on `storage_device`), on the device."""
        vectors = self._stored[rows if isinstance(rows, slice) else rows.to(self.storage_device)]
        if vectors.device.type != self.device.type:
            vectors = vectors.pin_memory().to(self.device, non_blocking=True)
            memmap.note_pages_read(vectors.nbytes)
        return vectors

    def expect_many_queries(self) -> None:
        """Read by compiled loops from now on."""
        self._plain_numbers = PLAIN_NUMBERS

    def takes_loops(self, numbers: int) -> bool:
        """Whether to read so many numbers more by compiled loops: on a CPU, and not for little work, as they take seconds to compile, once
        on a machine."""
        is_little = self._plain_numbers + numbers <= PLAIN_NUMBERS
        self._plain_numbers += numbers if is_little else 0
        return self.device.type == "cpu" and not is_little

    def reader(self, rows: int, coarse: bool, *, loops: bool = False) -> Callable[[slice], torch.Tensor]:
        """A function that reads slices of at most `rows` rows -> [≥ n, D] float32, or bfloat16 if coarse, by compiled `loops` if so.

        It reuses its buffer: a result is valid until the next read, and rows from n on are undefined.
        """
        if self.device.type == "cuda":
            return lambda part: self[part].to(torch.bfloat16 if coarse else torch.float32)
        buffer = torch.zeros(max(rows, 1), self.width, dtype=torch.bfloat16 if coarse else torch.float32)
        step = max(1, NUMBERS_IN_CACHE // max(self.width, 1))

        def read(part: slice) -> torch.Tensor:
            vectors = self[part]
            if loops and coarse:
                simd_loops.to_bfloat16(as_uint16(vectors), as_uint16(buffer[: len(vectors)]))
            else:
                for block in chunk_slices(len(vectors), step):
                    buffer[block] = vectors[block].float()  # torch converts float16 to bfloat16 fast only by way of float32
            memmap.note_pages_read(vectors.nbytes)
            return buffer

        return read

    def exact_dots(self, queries: torch.Tensor, query: torch.Tensor, rows: torch.Tensor, at_once: int = PAIRS_AT_ONCE) -> torch.Tensor:
        """`exact_dot` of pairs, so many at once: queries float32 [Q, D], query [P], rows [P] -> float64 [P]."""
        scores = torch.empty(len(rows), dtype=torch.float64, device=self.device)
        if self.takes_loops(len(rows) * self.width):
            for pairs in memmap.bounded_chunks(np.arange(len(rows))):
                part = slice(pairs[0], pairs[-1] + 1)
                arrays = (query[part].numpy(), rows[part].numpy(), scores[part].numpy())
                simd_loops.exact_pair_dots(as_uint16(self._rows), queries.contiguous().numpy(), *arrays)
            return scores
        rows = rows.to(self.storage_device)
        for part in chunk_slices(len(rows), at_once):
            scores[part] = exact_dot(queries[query[part]], self[rows[part]])
        return scores


def exact_dot(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Inner products of pairs, the same bits on every device: left, right [P, D] float32 or float16 -> float64 [P].

    A product of two float32 is exact in float64, and the products are added in a fixed pairwise order.

    >>> exact_dot(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[4.0, 5.0, 6.0]])).tolist()
    [32.0]
    """
    return pairwise_sum(left.double() * right.double())


def pairwise_sum(terms: torch.Tensor) -> torch.Tensor:
    """Sum over the last dimension by adding the second half to the first until one is left; overwrites `terms`.

    Zeros at the end change nothing, so padding changes nothing: [..., D] float64 -> [...] float64.
    """
    width = terms.shape[-1]
    span = 1 << max(width - 1, 0).bit_length()
    while span > 1:
        span //= 2
        if width > span:
            terms[..., : width - span] += terms[..., span:width]
            width = span
    return terms[..., 0] + 0.0 if width else terms.new_zeros(terms.shape[:-1])  # −0 becomes 0


def chunk_slices(count: int, step: int) -> Iterator[slice]:
    """Cut range(count) into slices of `step`, at least 1."""
    step = max(1, step)
    return (slice(first, min(first + step, count)) for first in range(0, count, step))


def check_width(width: int, index_width: int) -> None:
    """Refuse vectors of another dimension than those of the index."""
    if width != index_width:
        raise ArtifactError(f"vectors of dimension {width}, but the index holds dimension {index_width}: made by another checkpoint?")


def as_uint16(numbers: torch.Tensor) -> np.ndarray:
    """A view of float16 or bfloat16 numbers as uint16 bits."""
    bit_array: np.ndarray = numbers.view(torch.int16).numpy().view(np.uint16)
    return bit_array
