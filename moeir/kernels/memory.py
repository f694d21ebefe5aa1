"""Memory that is free but still held by the process, and memory that a device reads by itself."""

import ctypes
import sys
from functools import cache
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

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


def copy_to_device(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    """An array as a tensor on a device; on its way to CUDA the host does not wait for it."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor
