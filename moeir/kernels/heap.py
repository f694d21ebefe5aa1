"""The heap of glibc: how large tensors are allocated, and returning free memory. Without torch, which takes a second to load."""

import ctypes
import sys
from functools import cache
from typing import Any

M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES = -3, 1 << 20  # glibc's mallopt parameter; bytes


@cache
def _find_glibc_function(name: str) -> Any:
    """A function of glibc; None for another C library."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None


def mmap_large_tensors() -> None:
    """Allocate large tensors with mmap from now on, so that their memory returns to the system when they are freed.

    By default glibc takes more and more of them from its heap, whose fragmentation can double the peak memory of a step. Fresh pages cost
    a few per cent of a step's time: use it when memory is scarce.
    """
    if (tune := _find_glibc_function("mallopt")) is not None:
        tune(M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)


def trim_heap() -> None:
    """Return free heap memory to the system. Batches of varying sizes fragment the heap, by gigabytes in an hour."""
    if (trim := _find_glibc_function("malloc_trim")) is not None:
        trim(ctypes.c_size_t(0))
