"""Data-parallel training: JSON values and tensors gathered from all processes, gradients summed, errors reported by every process.

The main process collects the values and sends them to all. So it knows which process is late, has ended or has failed, and names it in
the error of every other.
"""

import atexit
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cache
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn

from moeir.backbones.device import resolve_device, select_device
from moeir.errors import MoeirError, OutOfMemory, UsageError, is_out_of_memory

MINUTES = 10.0  # that the others wait for one
SETUP_TIMEOUT = timedelta(days=7)  # reading texts before the first step may take any time
MIN_COLLECTIVE_TIMEOUT = timedelta(minutes=1)  # lower bound of the timeout of a collective, which may have to connect first
GROWTH_FACTOR = 1.25  # allocated over required bytes, so that the buffer seldom grows
BUCKET_ELEMENTS = 1 << 24  # float32 gradients in a bucket: 64 MiB


class SharedError(MoeirError):
    """An error that every process has received."""

    def __init__(self, message: str, exit_code: int = 1) -> None:  # unpickled from its message alone
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]


class PeerLost(MoeirError):
    """A collective failed because another process terminated; the cause is in that process's log."""


class CollectiveBuffer:
    """Memory for collectives, reused from one to the next, so that a collective that needs no more cannot run out of memory."""

    def __init__(self) -> None:
        self.bytes = torch.empty(0, dtype=torch.uint8)

    def grow(self, size: int, device: torch.device) -> bool:
        """Reserve `size` bytes on a device; true if the buffer had to be allocated anew."""
        if len(self.bytes) >= size and self.bytes.device == device:
            return False
        self.bytes = self.bytes[:0].clone()  # frees the old memory first
        with torch.inference_mode(False):
            self.bytes = torch.empty(int(GROWTH_FACTOR * size), dtype=torch.uint8, device=device)
        return True


@dataclass(frozen=True)
class ProcessGroup:
    """The processes of one training: this one is `rank` of `size`, on `device`.

    `names` has host and process id of each. JSON values go through `object_group`, tensors through `tensor_group` (None: torch's default
    group); `timeout` is how long processes wait for one another.
    """

    rank: int = 0
    size: int = 1
    device: str = "cpu"
    names: tuple[str, ...] = ("this process",)
    object_group: Any = None
    timeout: timedelta = SETUP_TIMEOUT
    tensor_group: Any = None
    buffer: CollectiveBuffer = field(default_factory=CollectiveBuffer, compare=False, repr=False)

    @property
    def is_main(self) -> bool:
        """Whether this is the process that writes files and logs."""
        return self.rank == 0

    def with_timeout(self, minutes: float) -> "ProcessGroup":
        """This group with another timeout, for NCCL too, which ends a process whose collective takes longer."""
        timeout = timedelta(minutes=minutes)
        if self.size == 1:
            return replace(self, timeout=timeout)
        self.all_gather_object(None, "the first step")
        nccl = self.device.startswith("cuda")
        with _translate_peer_errors():
            tensors = dist.new_group(backend="nccl" if nccl else "gloo", timeout=max(timeout, MIN_COLLECTIVE_TIMEOUT))
        if nccl:
            atexit.register(tensors.abort)  # exit would otherwise wait for collectives that a terminated process left open
        return replace(self, timeout=timeout, tensor_group=tensors)

    def all_gather_object(self, value: Any, moment: str) -> list[Any]:
        """The JSON value of each process, by rank. Ends all processes if one fails, terminates or exceeds the timeout.

        `moment` names the step of the program; processes that call with different moments are out of step, which is an error.
        """
        return [value] if self.size == 1 else self._exchange({"moment": moment, "value": value}, moment)

    @contextmanager
    def error_barrier(self) -> Iterator[None]:
        """An error of one process in this block ends all processes, and is reported once."""
        try:
            yield
        except (MoeirError, OSError) as error:
            if self.size == 1 or isinstance(error, SharedError):
                raise
            message = {"error": [str(error), getattr(error, "exit_code", 1)], "is_consequence": isinstance(error, PeerLost)}
            self._exchange(message, "an error", error)

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
        if self.size == 1:
            return
        facts_by_rank = self.all_gather_object(dict(facts), "the start")
        for rank, other in enumerate(facts_by_rank):
            if differing := [name for name in facts if other[name] != facts_by_rank[0][name]]:
                name = differing[0]
                difference = f"{name} is {other[name]} there, and {facts_by_rank[0][name]} in process 0"
                self._exit(f"process {rank} ({self.names[rank]}): {difference}; start all with the same files and settings")

    def all_gather(self, own: Sequence[Tensor], moment: str) -> list[list[Tensor]]:
        """The tensors of every process, by rank, without gradient; lengths may differ between processes, types must not."""
        if self.size == 1:
            return [[part.detach() for part in own]]
        shapes = self.all_gather_object([list(part.shape) for part in own], moment)
        sizes = [[torch.Size(shape).numel() * part.element_size() for shape, part in zip(row, own, strict=True)] for row in shapes]
        longest = max(map(sum, sizes))
        if self.buffer.grow((self.size + 1) * longest, own[0].device):  # in all processes or in none
            self.all_gather_object(None, f"memory for {moment}")
        packed, *received = self.buffer.bytes[: (self.size + 1) * longest].view(self.size + 1, longest)
        torch.cat([part.detach().contiguous().view(-1).view(torch.uint8) for part in own], out=packed[: sum(sizes[self.rank])])
        with _translate_peer_errors():
            dist.all_gather(received, packed, self.tensor_group)
        pieces = [tensors[: sum(row)].split(row) for tensors, row in zip(received, sizes, strict=True)]
        return [
            [piece.clone().view(part.dtype).view(shape) for piece, part, shape in zip(tensors, own, row, strict=True)]  # clones are aligned
            for tensors, row in zip(pieces, shapes, strict=True)
        ]

    def all_reduce_gradients(self, parameters: Sequence[nn.Parameter], moment: str) -> None:
        """Sum the gradients of each parameter over all processes; a parameter without gradient in every process stays without."""
        if self.size == 1:
            return
        without_gradient = [number for number, parameter in enumerate(parameters) if parameter.grad is None]
        largest = max(BUCKET_ELEMENTS, *(parameter.numel() for parameter in parameters))
        total = sum(parameter.numel() for parameter in parameters)
        buffer = parameters[0].new_empty(min(largest, total))  # before the exchange, so that a lack of memory is reported
        nowhere = set.intersection(*map(set, self.all_gather_object(without_gradient, moment)))
        with torch.no_grad():
            for bucket in _gradient_buckets([parameter for number, parameter in enumerate(parameters) if number not in nowhere]):
                flat = buffer[: sum(one.numel() for one in bucket)]
                torch.cat([(torch.zeros_like(one) if one.grad is None else one.grad).flatten() for one in bucket], out=flat)
                with _translate_peer_errors():
                    dist.all_reduce(flat, group=self.tensor_group)
                for one, part in zip(bucket, flat.split([one.numel() for one in bucket]), strict=True):
                    if one.grad is None:
                        one.grad = part.view_as(one).clone()
                    else:
                        one.grad.copy_(part.view_as(one))

    def broadcast_weights(self, model: nn.Module) -> None:
        """Copy the main process's weights to every process."""
        if self.size > 1:
            for tensor in model.state_dict().values():
                dist.broadcast(tensor, 0, self.tensor_group)

    def _exchange(self, message: dict[str, Any], moment: str, error: Exception | None = None) -> list[Any]:
        messages = self._gather_messages(message) if self.is_main else self._reply(message)
        if messages[0] is None:
            if isinstance(error, OutOfMemory):
                raise error  # no main process is left to report it
            self._exit(self._lost_message(0, moment), always_raise=True)
        for rank, reply in sorted(enumerate(messages), key=lambda one: _error_priority(one[1])):
            if reply is None:
                self._exit(self._lost_message(rank, moment))
            if "error" in reply:
                if error is not None and rank == self.rank == 0 and not isinstance(error, OutOfMemory):
                    raise error
                self._exit(f"{self._describe(rank)}: {reply['error'][0]}", reply["error"][1])
            if reply["moment"] != messages[0]["moment"]:
                self._exit(f"{self._describe(rank)} is at {reply['moment']}, process 0 at {messages[0]['moment']}")
        return [reply["value"] for reply in messages]

    def _describe(self, rank: int) -> str:
        return f"process {rank} of {self.size} ({self.names[rank]})"

    def _lost_message(self, rank: int, moment: str) -> str:
        minutes = f"{self.timeout.total_seconds() / 60:g} minutes"
        return f"{moment}: {self._describe(rank)} has terminated or did not respond within {minutes}; see the log of that process"

    def _gather_messages(self, message: dict[str, Any]) -> list[Any]:
        """In the main process: receive the messages of all, None for a lost process, and send them to all."""
        began, messages = time.monotonic(), [message, *[None] * (self.size - 1)]
        for rank in range(1, self.size):
            try:
                messages[rank] = self._receive(rank, self.timeout - timedelta(seconds=time.monotonic() - began))
            except RuntimeError:
                continue  # stays None, which the others are sent below
        for rank in range(1, self.size):
            if messages[rank] is not None:
                self._send(messages, rank)
        return messages

    def _reply(self, message: dict[str, Any]) -> list[Any]:
        """In the other processes: send the message and receive those of all; None for the main process, if it is lost."""
        try:
            self._send(message, 0)
            messages: list[Any] = self._receive(0, self.timeout * 2)
        except RuntimeError:
            return [None, *[message] * (self.size - 1)]
        return messages

    def _send(self, message: Any, rank: int) -> None:
        text = torch.frombuffer(bytearray(json.dumps(message).encode()), dtype=torch.uint8)
        dist.send(torch.tensor([len(text)]), rank, self.object_group)
        dist.send(text, rank, self.object_group)

    def _receive(self, rank: int, timeout: timedelta) -> Any:
        timeout = max(timeout, timedelta(seconds=1))
        length = torch.zeros(1, dtype=torch.int64)
        dist.irecv(length, rank, self.object_group).wait(timeout)
        text = torch.empty(int(length), dtype=torch.uint8)
        dist.irecv(text, rank, self.object_group).wait(timeout)
        return json.loads(bytes(text.tolist()))

    def _exit(self, message: str, code: int = 1, *, always_raise: bool = False) -> NoReturn:
        """Raise the error in the main process, or in this one if that is lost (`always_raise`); the other processes exit."""
        if not self.is_main and not always_raise:
            raise SystemExit(code)
        raise SharedError(message, code)


SINGLE_PROCESS = ProcessGroup()


@cache
def init_process_group(device: str) -> ProcessGroup:
    """The processes that torchrun or `accelerate launch` has started, each on the CUDA device of its local rank; else one."""
    size = int(os.environ["WORLD_SIZE"]) if "LOCAL_RANK" in os.environ else 1
    if size == 1:
        return ProcessGroup(device=select_device(device))
    on_cuda = resolve_device(device) != "cpu"
    own = select_device(f"cuda:{int(os.environ['LOCAL_RANK']) % torch.cuda.device_count()}" if on_cuda else "cpu")
    if not dist.is_initialized():
        _call_in_thread(lambda: dist.init_process_group("nccl" if on_cuda else "gloo", timeout=SETUP_TIMEOUT))
        atexit.register(destroy_process_group)
    group = _call_in_thread(lambda: dist.new_group(backend="gloo", timeout=SETUP_TIMEOUT))
    process_group, host_name = ProcessGroup(dist.get_rank(), size, own, ("",) * size, group), socket.gethostname()
    locations = process_group.all_gather_object([host_name, os.getpid(), process_group.device], "the start")
    names = (f"{host}, process {process}" + (f", {its_device}" if on_cuda else "") for host, process, its_device in locations)
    process_group = replace(process_group, names=tuple(names))
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


@contextmanager
def _translate_peer_errors() -> Iterator[None]:
    """Turn a failed collective into PeerLost; an out-of-memory error of this process passes unchanged."""
    try:
        yield
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        raise PeerLost(f"another process has terminated; see its log ({str(error)[:100]})") from None


def _error_priority(message: Mapping[str, Any] | None) -> int:
    """Sort key of messages: original errors, then lost processes, then errors that follow from those."""
    if message is None:
        return 1
    return 3 if "error" not in message else 2 if message.get("is_consequence") else 0


def _gradient_buckets(parameters: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Parameters in groups whose gradients fit into one buffer."""
    bucket: list[nn.Parameter] = []
    for parameter in parameters:
        if bucket and sum(one.numel() for one in bucket) + parameter.numel() > BUCKET_ELEMENTS:
            yield bucket
            bucket = []
        bucket.append(parameter)
    if bucket:
        yield bucket
