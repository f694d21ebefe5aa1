"""Several processes that train as one: what each says to all, texts gathered with the gradient of one's own, gradients added up.

Every word goes to the main process and comes back to all, so that one that does not come, or dies, or fails, is named to every other.
"""

import json
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from accelerate import PartialState
from torch import Tensor, nn

from moeir.architectures import base
from moeir.architectures.base import Encoded
from moeir.backbones.precision import device_for
from moeir.errors import MoeirError

MINUTES = 10.0  # that the others wait for one
PREPARING = timedelta(days=7)  # before the first step a process may read texts as long as it takes
NUMBERS_AT_ONCE = 1 << 24  # of gradients: 64 MiB


class Told(MoeirError):
    """An error that every process knows of."""

    def __init__(self, words: str, code: int = 1) -> None:
        super().__init__(words)
        self.code = code  # type: ignore[misc]


@dataclass(frozen=True)
class World:
    """The processes of one training: this one is `rank` of `size`, on `device`.

    `names` say where each runs, `group` is what their words go through; `patience` is how long they wait for one another.
    """

    rank: int = 0
    size: int = 1
    device: str = "cpu"
    names: tuple[str, ...] = ("this process",)
    group: Any = None
    patience: timedelta = PREPARING

    @property
    def main(self) -> bool:
        """Whether this is the process that writes and talks."""
        return self.rank == 0

    def patient(self, minutes: float) -> "World":
        """The same with other patience."""
        return replace(self, patience=timedelta(minutes=minutes))

    def said(self, words: Any, moment: str) -> list[Any]:
        """What each process says at this moment, by rank; JSON. Ends them all if one fails, is gone, or does not come in time."""
        return [words] if self.size == 1 else self._exchanged({"moment": moment, "words": words}, moment)

    @contextmanager
    def together(self) -> Iterator[None]:
        """What all do: an error in one of them ends all, and is told once."""
        try:
            yield
        except (MoeirError, OSError) as problem:
            if self.size == 1 or isinstance(problem, Told):
                raise
            self._exchanged({"problem": [str(problem), getattr(problem, "code", 1)]}, "an error", problem)

    @contextmanager
    def first(self) -> Iterator[None]:
        """What the main process does before the others, which then find it done."""
        if not self.main:
            self.said(None, "what one does for all")
        yield
        if self.main:
            self.said(None, "what one does for all")

    def agreed(self, facts: Mapping[str, Any]) -> None:
        """MoeirError that names the process and what differs, unless these facts are the same everywhere."""
        if self.size == 1:
            return
        everywhere = self.said(dict(facts), "the start")
        for rank, other in enumerate(everywhere):
            if apart := [name for name in facts if other[name] != everywhere[0][name]]:
                name = apart[0]
                words = f"{name} is {other[name]} there, and {everywhere[0][name]} in process 0"
                self._end(f"process {rank} ({self.names[rank]}): {words}; start all with the same files and settings")

    def gathered(self, texts: Encoded, moment: str) -> Encoded:
        """The texts of all processes end to end, by rank; only this process's have a gradient."""
        if self.size == 1:
            return texts
        everywhere = [iter(found) for found in self.all_of(texts.tensors(), moment)]
        parts = [texts.map(lambda _, found=found: next(found)) for found in everywhere]
        return base.gathered([texts if rank == self.rank else part for rank, part in enumerate(parts)])

    def all_of(self, own: Sequence[Tensor], moment: str) -> list[list[Tensor]]:
        """The tensors of every process, by rank, without gradient; they may have other lengths elsewhere, but no other types."""
        shapes = self.said([list(part.shape) for part in own], moment)
        sizes = [[torch.Size(shape).numel() * part.element_size() for shape, part in zip(row, own, strict=True)] for row in shapes]
        packed = torch.zeros(max(map(sum, sizes)), dtype=torch.uint8, device=own[0].device)
        torch.cat([part.detach().contiguous().view(-1).view(torch.uint8) for part in own], out=packed[: sum(sizes[self.rank])])
        received = [torch.empty_like(packed) for _ in shapes]
        with _alive():
            dist.all_gather(received, packed)
        pieces = [found[: sum(row)].split(row) for found, row in zip(received, sizes, strict=True)]
        return [
            [piece.clone().view(part.dtype).view(shape) for piece, part, shape in zip(found, own, row, strict=True)]  # clones are aligned
            for found, row in zip(pieces, shapes, strict=True)
        ]

    def add_gradients(self, parameters: Sequence[nn.Parameter], moment: str) -> None:
        """Every parameter gets the sum of its gradients over all processes; where none has one, it stays without."""
        if self.size == 1:
            return
        bare = [number for number, parameter in enumerate(parameters) if parameter.grad is None]
        missing = set.intersection(*map(set, self.said(bare, moment)))
        with torch.no_grad():
            for some in _portions([parameter for number, parameter in enumerate(parameters) if number not in missing]):
                zeros = (torch.zeros_like(one) if one.grad is None else one.grad for one in some)
                flat = torch.cat([gradient.flatten() for gradient in zeros])
                with _alive():
                    dist.all_reduce(flat)
                for one, part in zip(some, flat.split([one.numel() for one in some]), strict=True):
                    one.grad = part.view_as(one).clone()

    def same(self, model: nn.Module) -> None:
        """Give every process the main one's weights."""
        if self.size > 1:
            for tensor in model.state_dict().values():
                dist.broadcast(tensor, 0)

    def _exchanged(self, words: dict[str, Any], moment: str, own: Exception | None = None) -> list[Any]:
        everyone = self._collected(words) if self.main else self._answered(words)
        for rank, other in enumerate(everyone):
            name = f"process {rank} of {self.size} ({self.names[rank]})"
            if other is None:
                minutes = f"{self.patience.total_seconds() / 60:g} minutes"
                self._end(f"{moment}: {name} is gone, or did not come within {minutes}; its own last lines may say why", speaks=not rank)
            if "problem" in other:
                if own is not None and self.main:
                    raise own
                self._end(f"{name}: {other['problem'][0]}", other["problem"][1])
            if other["moment"] != everyone[0]["moment"]:
                self._end(f"{name} is at {other['moment']}, process 0 at {everyone[0]['moment']}")
        return [other["words"] for other in everyone]

    def _collected(self, words: dict[str, Any]) -> list[Any]:
        """Of the main process: what all say, None for who is lost; and all are told."""
        began, everyone = time.monotonic(), [words, *[None] * (self.size - 1)]
        for rank in range(1, self.size):
            try:
                everyone[rank] = self._received(rank, self.patience - timedelta(seconds=time.monotonic() - began))
            except RuntimeError:
                continue  # what is left None is told below
        for rank in range(1, self.size):
            if everyone[rank] is not None:
                self._sent(everyone, rank)
        return everyone

    def _answered(self, words: dict[str, Any]) -> list[Any]:
        """Of the others: what the main process has collected; None for it, if it is lost."""
        try:
            self._sent(words, 0)
            found: list[Any] = self._received(0, self.patience * 2)
        except RuntimeError:
            return [None, *[words] * (self.size - 1)]
        return found

    def _sent(self, words: Any, rank: int) -> None:
        text = torch.frombuffer(bytearray(json.dumps(words).encode()), dtype=torch.uint8)
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
        """The main process says why, another one only if that is lost; the rest leave."""
        if not self.main and not speaks:
            raise SystemExit(code)
        raise Told(words, code)


ALONE = World()


@cache
def joined(device: str) -> World:
    """The processes that torchrun or accelerate has started; one of its own is a world too."""
    name = device_for(device)
    state = PartialState(cpu=name == "cpu", timeout=PREPARING)
    if state.num_processes == 1:
        return World(device=name)
    group = dist.new_group(backend="gloo", timeout=PREPARING)
    world = World(state.process_index, state.num_processes, str(state.device), ("",) * state.num_processes, group)
    return replace(world, names=tuple(world.said(f"{socket.gethostname()}, process {os.getpid()}", "the start")))


@contextmanager
def _alive() -> Iterator[None]:
    """What the others do not answer is no error of this one's."""
    try:
        yield
    except RuntimeError as problem:
        raise Told(f"another process is gone, and its own last lines may say why ({str(problem)[:100]})") from None


def _portions(parameters: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Parameters in groups of a size that memory can hold once more."""
    some: list[nn.Parameter] = []
    for parameter in parameters:
        if some and sum(one.numel() for one in some) + parameter.numel() > NUMBERS_AT_ONCE:
            yield some
            some = []
        some.append(parameter)
    if some:
        yield some
