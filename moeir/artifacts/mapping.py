"""Memory-mapped arrays with a limit on their resident pages, and caches of such arrays.

Pages read from a mapped file stay resident until memory is needed elsewhere, so an exact search would seem to need the whole index in
memory. Code that reads much reports it with `note_pages_read`; beyond the limit the pages are released, to be read from the page cache.
"""

import mmap
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

KEPT = 2**30  # of all mapped files together; up to this nothing is released
STRIDE = 2**28  # bytes read between two releases
AROUND = 2**16  # bytes that reading a single row can page in

_mapped: "weakref.WeakSet[mmap.mmap]" = weakref.WeakSet()
_read = 0


def opened(path: Path) -> Any:
    """Map a `.npy` file, copy-on-write: assignments do not change the file. ValueError for any other file."""
    array = np.load(path, mmap_mode="c", allow_pickle=False)
    _mapped.add(array._mmap)
    return array


def read(size: int) -> None:
    """Report that about `size` bytes of mapped arrays were read, and release pages beyond the limit."""
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
    """Chunks of scattered rows [n]; pages around them may be released between chunks."""
    for first in range(0, len(rows), STRIDE // AROUND):
        part = rows[first : first + STRIDE // AROUND]
        yield part
        read(len(part) * AROUND)
