"""Parse blocks of a big file's lines into arrays with compiled loops."""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from moeir.records.ids import MAX_FIXED_BYTES

Numbers: TypeAlias = NDArray[np.float32]

_NUMBERS_PER_ARRAY = 2**24  # numbers in one array: small arrays would fragment memory, and pages never written take none


class CompiledReader:
    """Parses blocks with the compiled loops into arrays that are reused."""

    def __init__(self, loops: Any, width: int, wanted: tuple[int, ...], number: int) -> None:
        self._compiled, self._string_columns = loops, list(wanted)
        self._roles, self._key_widths = np.full(width, loops.SKIPPED), np.zeros(width, np.int64)
        self._roles[number] = loops.NUMBER
        self._key_widths[self._string_columns] = 1
        self._keys, self._numbers, self._used_numbers = np.empty((0, 0), np.uint64), np.empty(0, np.float32), 0

    def parse_block(self, block: bytes) -> list[NDArray[Any]] | None:
        """Keys of the string columns and the numbers of a block; None if some line or word is irregular."""
        ends = np.cumsum(self._key_widths[self._string_columns])
        self._roles[self._string_columns] = ends - self._key_widths[self._string_columns]
        max_rows = len(block) // (2 * len(self._roles)) + 1
        if max_rows > len(self._keys) or ends[-1] > self._keys.shape[1]:
            self._keys = np.empty((max_rows, ends[-1]), np.uint64)
        if self._used_numbers + max_rows > len(self._numbers):
            self._numbers, self._used_numbers = np.empty(max(max_rows, _NUMBERS_PER_ARRAY), np.float32), 0
        numbers = self._numbers[self._used_numbers :]
        rows, end = 0, block.rfind(b"\n") + 1
        for part in (memoryview(block)[:end], block[end:] + b"\n"):  # the last line has no newline
            if rows >= 0:
                rows = self._compiled.cut(np.frombuffer(part, np.uint8), self._roles, self._key_widths, self._keys, numbers, rows)
        if rows <= -2 and 16 * self._key_widths[-2 - rows] <= MAX_FIXED_BYTES:
            self._key_widths[-2 - rows] *= 2
            return self.parse_block(block)
        if rows <= 0:
            return None
        keys = [self._keys[:rows, end - self._key_widths[column] : end] for column, end in zip(self._string_columns, ends.tolist(), strict=True)]
        self._used_numbers += rows
        return [*keys, numbers[:rows]]


def concatenate_numbers(parts: list[Numbers]) -> Numbers:
    """All numbers in one array: the reader's own, if they are contiguous there."""
    array = parts[0].base
    if isinstance(array, np.ndarray) and all(part.base is array for part in parts):
        return array[: sum(map(len, parts))]
    return np.concatenate(parts)
