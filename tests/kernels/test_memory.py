"""Returning free memory to the system, and available device memory."""

import sys

import pytest
import torch

from moeir.kernels.heap import trim_heap
from moeir.kernels.memory import available_bytes


def resident() -> int:
    """KiB of this process in memory."""
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


@pytest.mark.skipif(sys.platform != "linux", reason="needs glibc's malloc_trim")
def test_what_lies_free_between_what_is_kept_is_handed_back():
    trim_heap()
    blocks = [torch.ones(16_000) for _ in range(4000)]  # 64 KB each, 250 MB: below the mmap threshold
    survivors, filled = blocks[::40], resident()
    del blocks
    trim_heap()
    assert filled - resident() > 150_000 and all(float(block.sum()) == 16_000 for block in survivors)


def test_what_torch_holds_without_use_is_available(monkeypatch):
    devices = []
    answers = {"mem_get_info": (1000, 5000), "memory_reserved": 700, "memory_allocated": 300}
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, answer=answer: devices.append(device) or answer)
    device = torch.device("cuda:1")
    assert available_bytes(device) == 1000 + 700 - 300 and devices == [device] * 3
