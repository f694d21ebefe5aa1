"""Parse blocks of a big file's lines into arrays with compiled loops."""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from moeir.records.ids import WIDEST

Numbers: TypeAlias = NDArray[np.float32]

_TOGETHER = 2**24  # numbers in one array: small arrays would fragment memory, and pages never written take none


class Cutter:
    """Parses blocks with the compiled loops into arrays that are reused."""

    def __init__(self, loops: Any, width: int, wanted: tuple[int, ...], number: int) -> None:
        self._loops, self._wanted = loops, list(wanted)
        self._roles, self._limits = np.full(width, loops.SKIPPED), np.zeros(width, np.int64)
        self._roles[number] = loops.NUMBER
        self._limits[self._wanted] = 1
        self._keys, self._numbers, self._used = np.empty((0, 0), np.uint64), np.empty(0, np.float32), 0

    def columns(self, block: bytes) -> list[NDArray[Any]] | None:
        """Keys of the string columns and the numbers of a block; None if some line or word is irregular."""
        ends = np.cumsum(self._limits[self._wanted])
        self._roles[self._wanted] = ends - self._limits[self._wanted]
        max_rows = len(block) // (2 * len(self._roles)) + 1
        if max_rows > len(self._keys) or ends[-1] > self._keys.shape[1]:
            self._keys = np.empty((max_rows, ends[-1]), np.uint64)
        if self._used + max_rows > len(self._numbers):
            self._numbers, self._used = np.empty(max(max_rows, _TOGETHER), np.float32), 0
        numbers = self._numbers[self._used :]
        rows, end = 0, block.rfind(b"\n") + 1
        for part in (memoryview(block)[:end], block[end:] + b"\n"):  # the last line has no newline
            if rows >= 0:
                rows = self._loops.cut(np.frombuffer(part, np.uint8), self._roles, self._limits, self._keys, numbers, rows)
        if rows <= -2 and 16 * self._limits[-2 - rows] <= WIDEST:
            self._limits[-2 - rows] *= 2
            return self.columns(block)
        if rows <= 0:
            return None
        keys = [self._keys[:rows, end - self._limits[column] : end] for column, end in zip(self._wanted, ends.tolist(), strict=True)]
        self._used += rows
        return [*keys, numbers[:rows]]


def joined(parts: list[Numbers]) -> Numbers:
    """All numbers in one array: the reader's own, if they are contiguous there."""
    array = parts[0].base
    if isinstance(array, np.ndarray) and all(part.base is array for part in parts):
        return array[: sum(map(len, parts))]
    return np.concatenate(parts)
