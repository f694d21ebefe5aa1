"""The heap of glibc: how large tensors are allocated, and returning free memory. Without torch, which takes a second to load."""

import ctypes
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX = -1, -3, -4  # parameters of glibc's mallopt
RETURN_FREED = {MMAP_THRESHOLD: 1 << 20}  # from a MiB on an allocation is a mapping of its own, and is the system's again when it is freed
KEEP_FREED = {MMAP_MAX: 0, TRIM_THRESHOLD: -1}  # no such mappings, and the heap is never shortened
LIKE_GLIBC = {MMAP_MAX: 65536, MMAP_THRESHOLD: 32 << 20, TRIM_THRESHOLD: 64 << 20}  # where glibc's own adjustment ends


@cache
def _find_glibc_function(name: str) -> Any:
    """A function of glibc; None for another C library."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None


@contextmanager
def tune_malloc(options: Mapping[int, int]) -> Iterator[None]:
    """Let glibc allocate by RETURN_FREED or KEEP_FREED within this block.

    By default glibc returns large tensors to the system when they are freed, and the system clears each page that it gives out again, with
    one thread waiting for the other. KEEP_FREED spares that, at the price of a higher peak; it pays where large tensors, as gradients of a
    vocabulary, come and go many times in a step. RETURN_FREED is for when memory is scarce: by default glibc takes all but the largest
    tensors from its heap, whose fragmentation can double the peak of a step.
    """
    _set_mallopt(options)
    try:
        yield
    finally:
        _set_mallopt(LIKE_GLIBC)
        trim_heap()


def _set_mallopt(options: Mapping[int, int]) -> None:
    if (tune := _find_glibc_function("mallopt")) is not None:
        for name, value in options.items():
            tune(name, value)


def trim_heap() -> None:
    """Return free heap memory to the system. Batches of varying sizes fragment the heap, by gigabytes in an hour."""
    if (trim := _find_glibc_function("malloc_trim")) is not None:
        trim(ctypes.c_size_t(0))
