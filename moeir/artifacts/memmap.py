"""Memory-mapped arrays with a limit on their resident pages, and caches of such arrays.

Pages read from a mapped file stay resident until memory is needed elsewhere, so an exact search would seem to need the whole index in
memory. Code that reads much reports it with `note_pages_read`; beyond the limit the pages are released, to be read from the page cache.

Caches: folders named by a hash of their inputs, built atomically or resumed, and opened as memory-mapped arrays.
"""

import errno
import hashlib
import json
import logging
import mmap
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
import numpy.typing as npt

from moeir.artifacts import atomic_write, identity, manifests
from moeir.errors import OutputInUse

MAX_RESIDENT_BYTES = 2**30  # of all mapped files together; up to this nothing is released
RELEASE_INTERVAL_BYTES = 2**28  # bytes read between two releases
ROW_READ_BYTES = 2**16  # bytes that reading a single row can page in

log = logging.getLogger(__name__)
_maps_lock = threading.Lock()
_open_maps: "weakref.WeakSet[mmap.mmap]" = weakref.WeakSet()
_bytes_read = 0


def open_memmap(path: Path) -> Any:
    """Map a `.npy` file, copy-on-write: assignments do not change the file. ValueError for any other file. An array that is larger than
    memory and swap together, whose copies the system does not promise, cannot be assigned to."""
    try:
        try:
            array: Any = np.lib.format.open_memmap(path, mode="c")
        except OSError as problem:
            if problem.errno != errno.ENOMEM:
                raise
            array = np.lib.format.open_memmap(path, mode="r")
    except (TypeError, OverflowError, TokenError, SyntaxError) as problem:  # no Python literal, or a shape that cannot be
        raise ValueError(str(problem)) from None
    with _maps_lock:
        _open_maps.add(array._mmap)
    return array


def save_array(path: Path, array: npt.NDArray[Any]) -> None:
    """Write a `.npy` file. numpy.save overlooks an error of the system in the last write, which leaves a truncated file."""
    contiguous = np.ascontiguousarray(array)
    with open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(contiguous))
        file.write(contiguous.data)


def note_pages_read(size: int) -> None:
    """Report that about `size` bytes of mapped arrays were read, and release pages beyond the limit."""
    global _bytes_read
    _bytes_read += size
    if _bytes_read < RELEASE_INTERVAL_BYTES:
        return
    _bytes_read = 0
    advice = getattr(mmap, "MADV_DONTNEED", None)
    with _maps_lock:
        maps = list(_open_maps)
    if advice is not None and sum(map(len, maps)) > MAX_RESIDENT_BYTES:
        for one in maps:
            one.madvise(advice)


def bounded_chunks(rows: Any) -> Iterator[Any]:
    """Chunks of scattered rows [n]; pages around them may be released between chunks."""
    for first in range(0, len(rows), RELEASE_INTERVAL_BYTES // ROW_READ_BYTES):
        part = rows[first : first + RELEASE_INTERVAL_BYTES // ROW_READ_BYTES]
        yield part
        note_pages_read(len(part) * ROW_READ_BYTES)


def get_or_build(
    folder: Path, kind: str, record: Mapping[str, Any], fill: Callable[[Path], dict[str, int]], *, rebuild: bool = False
) -> Path:
    """The cache folder for `record` (stage, settings and sources); `fill` writes its files if there is none, if one is damaged, or if
    `rebuild`. What another process is writing is waited for."""
    atomic_write.make_folder(folder)
    key = hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()[:16]
    path = folder / f"{kind}-{key}"
    if not rebuild and manifests.is_up_to_date(path, record):
        files = {path / name: entry for name, entry in manifests.read_manifest(path)["files"].items()}
        if (damaged := manifests.first_mismatch(files)) is not None:
            log.warning("%s: damaged: its checksum is not the one in the manifest; the cache is made again", damaged)
            rebuild = True
    while rebuild or not manifests.is_up_to_date(path, record):
        try:
            with atomic_write.atomic_output(path, f"{kind} cache", record, force=rebuild, folder=True) as (partial, counts):
                counts.update(fill(partial))
            break
        except OutputInUse:
            log.info("%s: another process is writing it; waiting", path)
            atomic_write.wait_for_writer(path)
            rebuild = False
    else:
        atomic_write.clean_leftovers(path, record)
    identity.hold(path)
    return path
