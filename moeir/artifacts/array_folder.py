"""The arrays of a folder, each checked when it is read, before any search depends on it.

Checksums match whatever a faulty program has written, and compiled loops check no bounds. An array that does not have the dtype and shape
its readers expect, offsets that do not cover what they point into, or numbers outside their range are an ArtifactError with the file, what
was expected and what was found.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from moeir.artifacts import memmap
from moeir.errors import ArtifactError

ROWS_AT_ONCE = 2**20
MAKE_AGAIN = "run the stage that made it again with --force"


class ArrayFolder(dict[str, npt.NDArray[Any]]):
    """The `.npy` files of a folder, memory-mapped, by name; `advice` is the end of the message about a damaged one."""

    def __init__(self, folder: Path, advice: str = MAKE_AGAIN) -> None:
        super().__init__()
        self._folder, self._advice = folder, advice
        for path in sorted(folder.glob("*.npy")):
            try:
                self[path.stem] = memmap.open_memmap(path)
            except ValueError as problem:
                self.refuse(path.stem, "an array", f"another file ({problem})")

    def read(
        self,
        name: str,
        dtype: npt.DTypeLike | tuple[npt.DTypeLike, ...],
        shape: Sequence[int | None],
        *,
        by: str = "",
        below: int | None = None,
    ) -> npt.NDArray[Any]:
        """A C-contiguous array of one of the dtypes and of a shape, None for any size; `below`: numbers from 0 to `below` - 1.

        `by` is what determines these, for messages: an array that disagrees with another one may be the sound one of the two.
        """
        if name not in self:
            self.refuse(name, "an array", "no file")
        array, dtypes = np.asarray(self[name]), dtype if isinstance(dtype, tuple) else (dtype,)
        sizes_match = array.ndim == len(shape) and all(size in (None, actual) for size, actual in zip(shape, array.shape, strict=True))
        if array.dtype not in dtypes or not sizes_match or not array.flags.c_contiguous:
            order = "" if array.flags.c_contiguous else " in column-major order"
            expected = f"{' or '.join(str(np.dtype(one)) for one in dtypes)} {_format_shape(shape)}"
            self.refuse(name, expected + _format_by(by), f"{array.dtype} {_format_shape(array.shape)}{order}")
        if below is not None and len(array) and (np.iinfo(array.dtype).min < 0 or np.iinfo(array.dtype).max >= below):
            lows, highs = zip(*((int(block.min()), int(block.max())) for block in _iterate_blocks(array)), strict=True)
            if min(lows) < 0 or max(highs) >= below:
                self.refuse(name, f"numbers from 0 to {below - 1}{_format_by(by)}", f"{min(lows)} to {max(highs)}")
        return array

    def read_offsets(self, name: str, lists: int | None, end: int, by: str, *, begin: int = 0) -> npt.NDArray[np.int64]:
        """Where each list (so many, or any number) begins in another array, `begin` first, and the `end` of the last: int64 [lists + 1]."""
        offsets = self.read(name, np.int64, (None if lists is None else lists + 1,), by=by)
        expected = f"ascending offsets from {begin} to {end}{_format_by(by)}"
        if not len(offsets) or (offsets[0], offsets[-1]) != (begin, end):
            self.refuse(name, expected, f"{offsets[0]} to {offsets[-1]}" if len(offsets) else "none")
        if any((part[1:] < part[:-1]).any() for part in _iterate_blocks(offsets, 1)):
            self.refuse(name, expected, "a smaller one after a larger one")
        return offsets

    def check_order(self, name: str, begins: npt.NDArray[np.int64], *, descending: bool = False) -> None:
        """Check that the numbers of each list ascend (or descend), equal ones allowed. `begins`: the first row of each list, all different.

        Every place where the order breaks must be the beginning of a list, so it is enough to count both.
        """
        array, breaks_order = np.asarray(self[name]), np.greater if descending else np.less
        breaks = sum(np.count_nonzero(breaks_order(part[1:], part[:-1])) for part in _iterate_blocks(array, 1))
        for part in _iterate_blocks(begins):
            later = part[part > 0]
            breaks -= np.count_nonzero(breaks_order(array[later], array[later - 1]))
        if breaks:
            self.refuse(name, f"{'descending' if descending else 'ascending'} numbers in each list", "another order")

    def refuse(self, name: str, expected: str, actual: str) -> NoReturn:
        """Raise the ArtifactError of an array."""
        raise ArtifactError(f"{self._folder / name}.npy: damaged: expected {expected}, found {actual}; {self._advice}")


def find_nonempty_begins(offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The first row of each list that has any.

    >>> find_nonempty_begins(np.array([0, 2, 2, 5])).tolist()
    [0, 2]
    """
    begins: npt.NDArray[np.int64] = offsets[:-1][offsets[1:] > offsets[:-1]]
    return begins


def _iterate_blocks(array: npt.NDArray[Any], overlap: int = 0) -> Iterator[npt.NDArray[Any]]:
    """The rows in blocks, each with the first `overlap` rows of the next."""
    for first in range(0, len(array), ROWS_AT_ONCE):
        block = array[first : first + ROWS_AT_ONCE + overlap]
        yield block
        memmap.note_pages_read(block.nbytes)


def _format_by(by: str) -> str:
    return f" by {by}" if by else ""


def _format_shape(shape: Sequence[int | None]) -> str:
    return f"[{', '.join('any' if size is None else str(size) for size in shape)}]"
