"""Memory that is free but still held by the process."""

import ctypes
import sys
from functools import cache
from typing import Any


@cache
def _trim() -> Any:
    """glibc's malloc_trim; None for another library."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None


def give_back() -> None:
    """Hand free memory back to the system. Batches of ever other sizes leave holes in the heap, which add up to gigabytes in an hour."""
    if (trim := _trim()) is not None:
        trim(ctypes.c_size_t(0))
