"""float16 vectors of an index: in shards while building, one memory map when opened, on the device if they fit."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from moeir.artifacts.journals import GrowingArray
from moeir.errors import ArtifactError, DataError

ROWS_AT_ONCE = 2**16


class Vectors:
    """Vectors [N, D] float16 and the norm of the longest."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.longest = 0.0
        self._shards: list[torch.Tensor] = []
        self._resident: torch.Tensor | None = None

    def __len__(self) -> int:
        return sum(len(shard) for shard in self._shards)

    def __getitem__(self, rows: slice | torch.Tensor) -> torch.Tensor:
        """Rows by slice or by number, on the device."""
        whole = self._whole()
        if isinstance(rows, slice):
            return whole[rows].to(self.device)
        return whole[rows.to(whole.device)].to(self.device)

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
        shard = vectors.detach().to("cpu", torch.float16)
        for first in range(0, len(shard), ROWS_AT_ONCE):
            norms = shard[first : first + ROWS_AT_ONCE].double().norm(dim=1)
            bad = (~torch.isfinite(norms)).nonzero()
            if len(bad):
                raise DataError(f"{owner(first + int(bad[0]))} holds NaN, infinity or more than float16 can hold")
            self.longest = max(self.longest, float(norms.max()))
        self._shards.append(shard)
        self._resident = None

    def save(self, path: Path) -> None:
        """Write one `.npy`, shard by shard."""
        target = GrowingArray(path, np.float16, self.width)
        for shard in self._shards:
            for first in range(0, len(shard), ROWS_AT_ONCE):
                target.append(shard[first : first + ROWS_AT_ONCE].numpy())
        target.close()

    def restore(self, vectors: np.ndarray, longest: float) -> None:
        """Take the memory map of a saved file."""
        self._shards, self.longest = [torch.from_numpy(np.asarray(vectors))], longest

    def _whole(self) -> torch.Tensor:
        if self._resident is None:
            if len(self._shards) != 1:
                self._shards = [torch.cat(self._shards)]
            self._resident = self._shards[0]
            if self.device.type == "cuda":
                free, _ = torch.cuda.mem_get_info(self.device)
                if 2 * self._resident.nbytes < free:
                    self._resident = self._resident.to(self.device)
        return self._resident
