"""Files as arrays that stay on disk, and a limit on how much of them stands in memory.

What was read of a mapped file stays resident until others need the room: an exact search over a large index would seem to need all of it.
Whoever reads much says how much; beyond the limit the pages go, and are found again in the system's cache.
"""

import mmap
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

KEPT = 2**30  # bytes of mapped files, of all together, that are never given up
STRIDE = 2**28  # bytes read between two givings up
AROUND = 2**16  # bytes that looking at a single row can bring in

_mapped: "weakref.WeakSet[mmap.mmap]" = weakref.WeakSet()
_read = 0


def opened(path: Path) -> Any:
    """The array of a `.npy` file, where it lies; writing to it changes nothing on disk. ValueError of another file."""
    array = np.load(path, mmap_mode="c", allow_pickle=False)
    _mapped.add(array._mmap)
    return array


def read(size: int) -> None:
    """Say that about so many bytes of mapped arrays were read."""
    global _read
    _read += size
    if _read < STRIDE:
        return
    _read = 0
    advice = getattr(mmap, "MADV_DONTNEED", None)
    if advice is not None and sum(map(len, _mapped)) > KEPT:
        for one in list(_mapped):
            one.madvise(advice)


def parted(rows: Any) -> Iterator[Any]:
    """Rows to be looked at here and there, [n], in parts between which their surroundings may be given up."""
    for first in range(0, len(rows), STRIDE // AROUND):
        part = rows[first : first + STRIDE // AROUND]
        yield part
        read(len(part) * AROUND)
