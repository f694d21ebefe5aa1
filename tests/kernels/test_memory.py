"""Returning free memory to the system, available device memory, and out-of-memory messages."""

import sys

import pytest
import torch

from moeir.kernels.heap import trim_heap
from moeir.kernels.memory import available_bytes, describe_out_of_memory


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


def test_a_shortage_is_told_with_the_device_the_host_and_what_is_taken(monkeypatch):
    answers = {"current_device": 1, "mem_get_info": (2**30, 80 * 2**30), "memory_allocated": 70 * 2**30, "get_device_name": "A card"}
    for name, answer in (answers | {"is_initialized": True}).items():
        monkeypatch.setattr(torch.cuda, name, lambda *device, answer=answer: answer)
    monkeypatch.setattr("socket.gethostname", lambda: "node3")
    problem = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 79.2 GiB")
    usage = "79.0 GiB of 80.0 GiB are taken, 70.0 GiB by tensors of this process; 2.00 GiB more were wanted"
    assert describe_out_of_memory(problem) == f"out of memory on cuda:1 (A card) of node3: {usage}"
    for problem in (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 bytes."), MemoryError()):
        assert describe_out_of_memory(problem).startswith("out of memory on the CPU of node3: this process has taken up to ")
    assert describe_out_of_memory(RuntimeError("CPU: you tried to allocate 4096 bytes.")).endswith("; 4096 bytes more were wanted")
