"""Host and device memory: available bytes, and copies through pinned memory."""

from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor


def copy_to_device(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    """An array as a tensor on a device; the copy to CUDA is asynchronous."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def available_bytes(device: torch.device) -> int:
    """Bytes this process can still allocate on a CUDA device: its free memory, and what torch has reserved but not allocated."""
    free, _ = torch.cuda.mem_get_info(device)
    return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))
