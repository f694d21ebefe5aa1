"""Memory that is free but still held by the process, and what a CUDA device has left."""

import ctypes
import sys
from functools import cache
from typing import Any

import torch

M_MMAP_THRESHOLD, LARGE = -3, 1 << 20  # glibc's name for it, and bytes


@cache
def _trim() -> Any:
    """glibc's malloc_trim; None for another library."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None


@cache
def steady() -> None:
    """Give every large tensor a place of its own, from now on, which the system gets back when the tensor goes.

    Left to itself glibc takes more and more of them from its heap, whose holes can double the peak of a step. Fresh pages cost time, a
    few per cent of a step: for where memory is what is short.
    """
    if sys.platform == "linux" and (tune := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        tune(M_MMAP_THRESHOLD, LARGE)


def give_back() -> None:
    """Hand free memory back to the system. Batches of ever other sizes leave holes in the heap, which add up to gigabytes in an hour."""
    if (trim := _trim()) is not None:
        trim(ctypes.c_size_t(0))


def available_bytes(device: torch.device) -> int:
    """What a CUDA device can still give this process: its free memory, and what torch holds of it and does not use."""
    free, _ = torch.cuda.mem_get_info(device)
    return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))
