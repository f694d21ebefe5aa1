"""Data-parallel training: JSON values and tensors gathered from all processes, gradients summed, errors reported by every process.

Values go to the main process and back to all, so that a process that is late, terminates or fails is named in the error of every other.
"""

import atexit
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cache
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from accelerate import PartialState
from torch import Tensor, nn

from moeir.architectures import base
from moeir.architectures.base import Encoded
from moeir.backbones.precision import device_for, resolve_device
from moeir.errors import MoeirError, OutOfMemory, UsageError, is_out_of_memory

MINUTES = 10.0  # that the others wait for one
PREPARING = timedelta(days=7)  # reading texts before the first step may take any time
CONNECTING = timedelta(minutes=1)  # lower bound of the timeout of a collective, which may have to connect first
SPARE = 1.25  # allocated over required bytes, so that the buffer seldom grows
NUMBERS_AT_ONCE = 1 << 24  # float32 gradients in a bucket: 64 MiB


class Told(MoeirError):
    """An error that every process has received."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code  # type: ignore[misc]


class PeerLost(MoeirError):
    """A collective failed because another process terminated; the cause is in that process's log."""


class Buffer:
    """Memory for collectives, reused from one to the next, so that a collective that needs no more cannot run out of memory."""

    def __init__(self) -> None:
        self._bytes = torch.empty(0, dtype=torch.uint8)

    def grow(self, size: int, device: torch.device) -> bool:
        """Reserve `size` bytes on a device; true if the buffer had to be allocated anew."""
        if len(self._bytes) >= size and self._bytes.device == device:
            return False
        self._bytes = self._bytes[:0].clone()  # frees the old memory first
        with torch.inference_mode(False):
            self._bytes = torch.empty(int(SPARE * size), dtype=torch.uint8, device=device)
        return True

    def rows(self, count: int, size: int) -> list[Tensor]:
        """`count` rows of `size` bytes."""
        return list(self._bytes[: count * size].view(count, size))


@dataclass(frozen=True)
class World:
    """The processes of one training: this one is `rank` of `size`, on `device`.

    `names` has host and process id of each. JSON values go through `object_group`, tensors through `tensor_group` (None: torch's default
    group); `timeout` is how long processes wait for one another.
    """

    rank: int = 0
    size: int = 1
    device: str = "cpu"
    names: tuple[str, ...] = ("this process",)
    group: Any = None
    patience: timedelta = PREPARING
    tensors: Any = None
    buffer: Buffer = field(default_factory=Buffer, compare=False, repr=False)

    @property
    def main(self) -> bool:
        """Whether this is the process that writes files and logs."""
        return self.rank == 0

    def patient(self, minutes: float) -> "World":
        """The same group with another timeout, for NCCL too, which ends a process whose collective takes longer."""
        timeout = timedelta(minutes=minutes)
        if self.size == 1:
            return replace(self, patience=timeout)
        self.said(None, "the first step")
        nccl = self.device.startswith("cuda")
        with _peers_alive():
            tensors = dist.new_group(backend="nccl" if nccl else "gloo", timeout=max(timeout, CONNECTING))
        if nccl:
            atexit.register(tensors.abort)  # exit would otherwise wait for collectives that a terminated process left open
        return replace(self, patience=timeout, tensors=tensors)

    def said(self, words: Any, moment: str) -> list[Any]:
        """The JSON value of each process, by rank. Ends all processes if one fails, terminates or exceeds the timeout.

        `moment` names the step of the program; processes that call with different moments are out of step, which is an error.
        """
        return [words] if self.size == 1 else self._exchanged({"moment": moment, "value": words}, moment)

    @contextmanager
    def together(self) -> Iterator[None]:
        """An error of one process in this block ends all processes, and is reported once."""
        try:
            yield
        except (MoeirError, OSError) as error:
            if self.size == 1 or isinstance(error, Told):
                raise
            message = {"error": [str(error), getattr(error, "code", 1)], "is_consequence": isinstance(error, PeerLost)}
            self._exchanged(message, "an error", error)

    @contextmanager
    def first(self) -> Iterator[None]:
        """The main process runs this block before the others."""
        if not self.main:
            self.said(None, "the main process's own work")
        yield
        if self.main:
            self.said(None, "the main process's own work")

    def agreed(self, facts: Mapping[str, Any]) -> None:
        """MoeirError that names the process and the difference, unless these facts are the same in all processes."""
        if self.size == 1:
            return
        facts_by_rank = self.said(dict(facts), "the start")
        for rank, other in enumerate(facts_by_rank):
            if differing := [name for name in facts if other[name] != facts_by_rank[0][name]]:
                name = differing[0]
                difference = f"{name} is {other[name]} there, and {facts_by_rank[0][name]} in process 0"
                self._end(f"process {rank} ({self.names[rank]}): {difference}; start all with the same files and settings")

    def gathered(self, texts: Encoded, moment: str) -> Encoded:
        """The encoded texts of all processes end to end, by rank; only this process's have a gradient."""
        if self.size == 1:
            return texts
        rank_tensors = [iter(tensors) for tensors in self.all_of(texts.tensors(), moment)]
        gathered_parts = [texts.map(lambda _, tensors=tensors: next(tensors)).unbounded() for tensors in rank_tensors]
        return base.gathered([texts if rank == self.rank else part for rank, part in enumerate(gathered_parts)])

    def all_of(self, own: Sequence[Tensor], moment: str) -> list[list[Tensor]]:
        """The tensors of every process, by rank, without gradient; lengths may differ between processes, types must not."""
        shapes = self.said([list(part.shape) for part in own], moment)
        sizes = [[torch.Size(shape).numel() * part.element_size() for shape, part in zip(row, own, strict=True)] for row in shapes]
        longest = max(map(sum, sizes))
        if self.buffer.grow((self.size + 1) * longest, own[0].device):  # in all processes or in none
            self.said(None, f"memory for {moment}")
        packed, *received = self.buffer.rows(self.size + 1, longest)
        torch.cat([part.detach().contiguous().view(-1).view(torch.uint8) for part in own], out=packed[: sum(sizes[self.rank])])
        with _peers_alive():
            dist.all_gather(received, packed, self.tensors)
        pieces = [tensors[: sum(row)].split(row) for tensors, row in zip(received, sizes, strict=True)]
        return [
            [piece.clone().view(part.dtype).view(shape) for piece, part, shape in zip(tensors, own, row, strict=True)]  # clones are aligned
            for tensors, row in zip(pieces, shapes, strict=True)
        ]

    def add_gradients(self, parameters: Sequence[nn.Parameter], moment: str) -> None:
        """Sum the gradients of each parameter over all processes; a parameter without gradient in every process stays without."""
        if self.size == 1:
            return
        without_gradient = [number for number, parameter in enumerate(parameters) if parameter.grad is None]
        largest = max(NUMBERS_AT_ONCE, *(parameter.numel() for parameter in parameters))
        buffer = parameters[0].new_empty(
            min(largest, sum(parameter.numel() for parameter in parameters))
        )  # allocated before the exchange, so that a lack of memory is reported
        without_gradient_anywhere = set.intersection(*map(set, self.said(without_gradient, moment)))
        with torch.no_grad():
            for bucket in _portions([parameter for number, parameter in enumerate(parameters) if number not in without_gradient_anywhere]):
                flat = buffer[: sum(one.numel() for one in bucket)]
                torch.cat([(torch.zeros_like(one) if one.grad is None else one.grad).flatten() for one in bucket], out=flat)
                with _peers_alive():
                    dist.all_reduce(flat, group=self.tensors)
                for one, part in zip(bucket, flat.split([one.numel() for one in bucket]), strict=True):
                    if one.grad is None:
                        one.grad = part.view_as(one).clone()
                    else:
                        one.grad.copy_(part.view_as(one))

    def same(self, model: nn.Module) -> None:
        """Copy the main process's weights to every process."""
        if self.size > 1:
            for tensor in model.state_dict().values():
                dist.broadcast(tensor, 0, self.tensors)

    def _exchanged(self, words: dict[str, Any], moment: str, own: Exception | None = None) -> list[Any]:
        messages = self._collected(words) if self.main else self._answered(words)
        if messages[0] is None:
            if isinstance(own, OutOfMemory):
                raise own  # no main process is left to report it
            self._end(self._gone(0, moment), speaks=True)
        for rank, reply in sorted(enumerate(messages), key=lambda one: _order_of_telling(one[1])):
            if reply is None:
                self._end(self._gone(rank, moment))
            if "error" in reply:
                if own is not None and rank == self.rank == 0 and not isinstance(own, OutOfMemory):
                    raise own
                self._end(f"{self._name(rank)}: {reply['error'][0]}", reply["error"][1])
            if reply["moment"] != messages[0]["moment"]:
                self._end(f"{self._name(rank)} is at {reply['moment']}, process 0 at {messages[0]['moment']}")
        return [reply["value"] for reply in messages]

    def _name(self, rank: int) -> str:
        return f"process {rank} of {self.size} ({self.names[rank]})"

    def _gone(self, rank: int, moment: str) -> str:
        minutes = f"{self.patience.total_seconds() / 60:g} minutes"
        return f"{moment}: {self._name(rank)} has terminated or did not respond within {minutes}; see the log of that process"

    def _collected(self, message: dict[str, Any]) -> list[Any]:
        """In the main process: receive the messages of all, None for a lost process, and send them to all."""
        began, messages = time.monotonic(), [message, *[None] * (self.size - 1)]
        for rank in range(1, self.size):
            try:
                messages[rank] = self._received(rank, self.patience - timedelta(seconds=time.monotonic() - began))
            except RuntimeError:
                continue  # stays None, which the others are sent below
        for rank in range(1, self.size):
            if messages[rank] is not None:
                self._sent(messages, rank)
        return messages

    def _answered(self, message: dict[str, Any]) -> list[Any]:
        """In the other processes: send the message and receive those of all; None for the main process, if it is lost."""
        try:
            self._sent(message, 0)
            messages: list[Any] = self._received(0, self.patience * 2)
        except RuntimeError:
            return [None, *[message] * (self.size - 1)]
        return messages

    def _sent(self, message: Any, rank: int) -> None:
        text = torch.frombuffer(bytearray(json.dumps(message).encode()), dtype=torch.uint8)
        dist.send(torch.tensor([len(text)]), rank, self.group)
        dist.send(text, rank, self.group)

    def _received(self, rank: int, patience: timedelta) -> Any:
        patience = max(patience, timedelta(seconds=1))
        length = torch.zeros(1, dtype=torch.int64)
        dist.irecv(length, rank, self.group).wait(patience)
        text = torch.empty(int(length), dtype=torch.uint8)
        dist.irecv(text, rank, self.group).wait(patience)
        return json.loads(bytes(text.tolist()))

    def _end(self, words: str, code: int = 1, *, speaks: bool = False) -> NoReturn:
        """Raise the error in the main process, or in this one if that is lost (`always_raise`); the other processes exit."""
        if not self.main and not speaks:
            raise SystemExit(code)
        raise Told(words, code)


ALONE = World()


@cache
def joined(device: str) -> World:
    """The processes that torchrun or accelerate has started, each on the CUDA device of its local rank; a group of one without them."""
    name, was_initialized = resolve_device(device), dist.is_initialized()
    state = PartialState(cpu=name == "cpu", timeout=PREPARING)
    if dist.is_initialized() and not was_initialized:
        atexit.register(leave)
    if state.num_processes == 1:
        return World(device=device_for(device))
    group = dist.new_group(backend="gloo", timeout=PREPARING)
    own = name if name == "cpu" else str(state.device)  # accelerate names a CPU cpu:0
    process_group = World(state.process_index, state.num_processes, own, ("",) * state.num_processes, group)
    host_name, on_cuda = socket.gethostname(), process_group.device != "cpu"
    locations = process_group.said([host_name, os.getpid(), process_group.device], "the start")
    names = (f"{host}, process {process}" + (f", {its_device}" if on_cuda else "") for host, process, its_device in locations)
    process_group = replace(process_group, names=tuple(names))
    with process_group.together():
        if on_cuda:
            _check_devices(device, [f"{its_device} of {host}" for host, _, its_device in locations])
    return process_group


def leave() -> None:
    """Destroy the process group; an exiting process waits for no other."""
    joined.cache_clear()
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
def _peers_alive() -> Iterator[None]:
    """Turn a failed collective into PeerLost; an out-of-memory error of this process passes unchanged."""
    try:
        yield
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        raise PeerLost(f"another process has terminated; see its log ({str(error)[:100]})") from None


def _order_of_telling(message: Mapping[str, Any] | None) -> int:
    """Sort key of messages: original errors, then lost processes, then errors that follow from those."""
    if message is None:
        return 1
    return 3 if "error" not in message else 2 if message.get("is_consequence") else 0


def _portions(parameters: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Parameters in groups whose gradients fit into one buffer."""
    bucket: list[nn.Parameter] = []
    for parameter in parameters:
        if bucket and sum(one.numel() for one in bucket) + parameter.numel() > NUMBERS_AT_ONCE:
            yield bucket
            bucket = []
        bucket.append(parameter)
    if bucket:
        yield bucket
