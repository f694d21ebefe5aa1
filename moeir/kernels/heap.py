"""The heap of glibc: returning free memory. Without torch, which takes a second to load."""

import ctypes
import sys


def trim_heap() -> None:
    """Return free heap memory to the system. Batches of varying sizes fragment the heap, by gigabytes in an hour."""
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:  # None: another C library
        trim(ctypes.c_size_t(0))
