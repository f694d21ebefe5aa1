"""Memory that is free but still held by the process, how much of it is left or taken, and memory that a device reads by itself."""

import ctypes
import os
import re
import resource
import socket
import sys
from functools import cache
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from moeir.console import size

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


def available_bytes(device: torch.device) -> int:
    """What a CUDA device can still give this process: its free memory, and what torch holds of it and does not use."""
    free, _ = torch.cuda.mem_get_info(device)
    return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))


def describe_shortage(problem: BaseException) -> str:
    """Where memory has run out, of the host or of the CUDA device that this process computes on, and how much of it is taken."""
    host, wanted = socket.gethostname(), re.search(r"[Tt]ried to allocate ([\d.]+ \w+)", str(problem))
    more = f"; {wanted[1]} more were wanted" if wanted else ""
    if not torch.cuda.is_initialized() or isinstance(problem, MemoryError) or "CPU" in str(problem):
        held, total = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return f"out of memory on the CPU of {host}: this process has taken up to {size(held)} of {size(total)}{more}"
    device = torch.cuda.current_device()
    (free, total), held = torch.cuda.mem_get_info(device), torch.cuda.memory_allocated(device)
    name = f"cuda:{device} ({torch.cuda.get_device_name(device)}) of {host}"
    return f"out of memory on {name}: {size(total - free)} of {size(total)} are taken, {size(held)} by tensors of this process{more}"
