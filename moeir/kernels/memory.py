"""Host and device memory: available bytes, out-of-memory messages, and copies through pinned memory."""

import os
import re
import resource
import socket
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from moeir.console import format_bytes


def copy_to_device(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    """An array as a tensor on a device; the copy to CUDA is asynchronous."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def available_bytes(device: torch.device) -> int:
    """Bytes this process can still allocate on a CUDA device: its free memory, and what torch has reserved but not allocated."""
    free, _ = torch.cuda.mem_get_info(device)
    return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))


def describe_out_of_memory(problem: BaseException) -> str:
    """Message for an out-of-memory error: the host or CUDA device, and how much of its memory is used."""
    host, request = socket.gethostname(), re.search(r"[Tt]ried to allocate ([\d.]+ \w+)", str(problem))
    request_note = f"; {request[1]} more were wanted" if request else ""
    if not torch.cuda.is_initialized() or isinstance(problem, MemoryError) or "CPU" in str(problem):
        used, total = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        taken = f"this process has taken up to {format_bytes(used)} of {format_bytes(total)}"
        return f"out of memory on the CPU of {host}: {taken}{request_note}"
    device = torch.cuda.current_device()
    (free, total), used = torch.cuda.mem_get_info(device), torch.cuda.memory_allocated(device)
    name = f"cuda:{device} ({torch.cuda.get_device_name(device)}) of {host}"
    taken = f"{format_bytes(total - free)} of {format_bytes(total)} are taken, {format_bytes(used)} by tensors of this process"
    return f"out of memory on {name}: {taken}{request_note}"
