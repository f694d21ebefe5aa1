"""The processes of one training: gathers of JSON values and tensors, and checks that all do the same."""

import atexit
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from moeir.backbones.device import resolve_device, select_device
from moeir.errors import UsageError
from moeir.process_errors import SETUP_TIMEOUT, Processes

all_gather_single = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)  # its name before torch 2.13
MIN_NCCL_TIMEOUT = timedelta(minutes=1)  # of a collective, which may have to connect first


@dataclass(frozen=True)
class ProcessGroup(Processes):
    """The processes of one training; this one is on `device`."""

    device: str = "cpu"

    def with_timeout(self, minutes: float) -> "ProcessGroup":
        """This group with another timeout, for NCCL too, which ends a process whose collective takes longer."""
        timeout, connections = timedelta(minutes=minutes), dict[str, Any]()
        if self.size > 1:
            self.all_gather_object(None, "the first step")
            with self.watch("the first step"):
                connections["host"] = dist.new_group(backend="gloo", timeout=timeout)
                if self.device.startswith("cuda"):
                    nccl = {"backend": "nccl", "timeout": max(timeout, MIN_NCCL_TIMEOUT), "device_id": torch.device(self.device)}
                    connections["device"] = dist.new_group(**nccl)
                    atexit.register(connections["device"].abort)  # exit would wait for collectives that a terminated process left open
        return replace(self, timeout=timeout, connections=connections)

    def all_gather_object(self, value: Any, moment: str) -> list[Any]:
        """The JSON value of each process, by rank. `moment` names the step of the program; processes at different ones are an error."""
        if self.size == 1:
            return [value]
        text = torch.frombuffer(bytearray(json.dumps([moment, value]).encode()), dtype=torch.uint8)
        messages = [json.loads(bytes(part.tolist())) for (part,) in self.all_gather([text], moment)]
        for rank, (other, _) in enumerate(messages):
            if other != messages[0][0]:
                self._exit(f"{self._describe(rank)} is at {other}, process 0 at {messages[0][0]}")
        return [reply for _, reply in messages]

    def all_gather(self, own: Sequence[Tensor], moment: str) -> list[list[Tensor]]:
        """The tensors of every process, by rank, without gradient; lengths may differ between processes, types must not."""
        if self.size == 1:
            return [[part.detach() for part in own]]
        lengths = torch.tensor([length for part in own for length in part.shape], dtype=torch.int64)
        with self.watch(moment):
            rows = _gather(lengths, [lengths.shape] * self.size, self.connections["host"], self.rank)  # on the host: waits for no device
            shapes = [[torch.Size(islice(row, part.ndim)) for part in own] for row in map(iter, map(Tensor.tolist, rows))]
            columns = (
                _gather(part, column, self.connections["host" if part.device.type == "cpu" else "device"], self.rank)
                for part, column in zip(own, zip(*shapes, strict=True), strict=True)
            )
            return [list(tensors) for tensors in zip(*columns, strict=True)]

    def wait_on_host(self, moment: str) -> None:
        """On CUDA: wait for all processes before waiting for the device, which one that has ended would keep waiting."""
        if "device" in self.connections:
            with self.watch(moment):
                dist.barrier(self.connections["host"])

    @contextmanager
    def main_process_first(self) -> Iterator[None]:
        """The main process runs this block before the others."""
        if not self.is_main:
            self.all_gather_object(None, "the main process's own work")
        yield
        if self.is_main:
            self.all_gather_object(None, "the main process's own work")

    def check_same(self, facts: Mapping[str, Any]) -> None:
        """MoeirError that names the process and the difference, unless these facts are the same in all processes."""
        first, *others = self.all_gather_object(dict(facts), "the start")
        for rank, other in enumerate(others, 1):
            if name := next((name for name in facts if other[name] != first[name]), None):
                difference = f"{name} is {other[name]} there, and {first[name]} in process 0"
                self._exit(f"process {rank} ({self.names[rank]}): {difference}; start all with the same files and settings")


SINGLE_PROCESS = ProcessGroup()


@cache
def init_process_group(device: str) -> ProcessGroup:
    """The processes that torchrun or `accelerate launch` has started, each on the CUDA device of its local rank; else one."""
    size = int(os.environ.get("WORLD_SIZE", 1)) if "LOCAL_RANK" in os.environ else 1
    if size == 1:
        return ProcessGroup(device=select_device(device))
    on_cuda = resolve_device(device) != "cpu"
    own = select_device(f"cuda:{int(os.environ['LOCAL_RANK']) % torch.cuda.device_count()}" if on_cuda else "cpu")
    if not dist.is_initialized():
        _call_in_thread(lambda: dist.init_process_group("gloo", timeout=SETUP_TIMEOUT))
        atexit.register(destroy_process_group)
    connections = {"host": _call_in_thread(lambda: dist.new_group(backend="gloo", timeout=SETUP_TIMEOUT))}
    store = dist.PrefixStore("moeir", dist.distributed_c10d._get_default_store())
    process_group = ProcessGroup(dist.get_rank(), size, ("",) * size, store=store, connections=connections, device=own)
    locations = process_group.all_gather_object([socket.gethostname(), os.getpid(), own], "the start")
    names = tuple(f"{host}, process {process}" + (f", {its_device}" if on_cuda else "") for host, process, its_device in locations)
    process_group = replace(process_group, names=names)
    with process_group.error_barrier():
        if on_cuda:
            _check_devices(device, [f"{its_device} of {host}" for host, _, its_device in locations])
    return process_group


def _call_in_thread(function: Callable[[], Any]) -> Any:
    """Call the function in a thread and return its result. Ctrl-C ends the wait, where torch itself goes on connecting after a signal."""
    result = Future[Any]()

    def run() -> None:
        try:
            result.set_result(function())
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            result.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return result.result()


def destroy_process_group() -> None:
    """Destroy the process group; an exiting process waits for no other."""
    init_process_group.cache_clear()
    if dist.is_initialized():
        dist.destroy_process_group()


def _check_devices(name: str, devices: Sequence[str]) -> None:
    """UsageError unless each process has a CUDA device of its own."""
    if name not in ("auto", "cuda"):
        raise UsageError(f"--device {name}: each of {len(devices)} processes takes the device of its number; expected auto, cuda or cpu")
    for rank, device in enumerate(devices):
        if (other := devices.index(device)) < rank:
            raise UsageError(f"processes {other} and {rank} would share {device}; start as many on a machine as it has CUDA devices")


def _gather(own: Tensor, shapes: Sequence[torch.Size], connection: Any, rank: int) -> list[Tensor]:
    """The tensors of these shapes of all processes, of which `own` is one; as bytes, since not every connection takes every type."""
    counts = [shape.numel() * own.element_size() for shape in shapes]
    padded = torch.empty(max(8, *counts), dtype=torch.uint8, device=own.device)  # at least a number of any type
    padded[: counts[rank]] = own.detach().contiguous().view(-1).view(torch.uint8)
    received = padded.new_empty(len(shapes) * len(padded))
    all_gather_single(received, padded, connection)
    parts = zip(received.view(len(shapes), len(padded)), counts, shapes, strict=True)
    return [row[:count].view(own.dtype).view(shape) for row, count, shape in parts]
