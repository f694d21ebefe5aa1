"""torch.cuda for the fake cards, and patches of the few torch functions that would access a fake tensor's storage."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch

from tests.device.fake_cuda import GUARD, TOTAL_BYTES, Card, CardMode, DeviceTensor, FakeMachine, active_machine

NAME = "Pretended H100"


class Event:
    """torch.cuda.Event: synchronising finishes the copies to the host that were pending when it was recorded."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        self._time = 0.0
        self._seen: list[tuple[Card, list[Any]]] = []

    def record(self, stream: Any = None) -> None:
        self._time = time.perf_counter()
        self._seen = [(card, list(card.pending_copies)) for card in active_machine().cards]

    def synchronize(self) -> None:
        active_machine().counts.add("sync", "Event.synchronize")
        for card, pending in self._seen:
            card.finish_copies(sum(any(one is other for other in pending) for one in card.pending_copies))

    def elapsed_time(self, other: "Event") -> float:
        return (other._time - self._time) * 1e3


class Stream:
    """torch.cuda.Stream; there is only one order of work."""

    cuda_stream = stream_id = 0

    def __init__(self, device: Any = None, priority: int = 0, **others: Any) -> None:
        self.device = torch.device("cuda", active_machine().card(device).index)

    def synchronize(self) -> None:
        active_machine().wait("Stream.synchronize")

    def record_event(self) -> Event:
        event = Event()
        event.record()
        return event


def _exchange_device(index: int) -> int:
    before = GUARD.pretended_current_card()
    if index >= 0:
        GUARD.pretended_choose_card(index)
    return int(before)


def _set_device(device: Any) -> None:
    if torch.cuda._utils._get_device_index(device, optional=True) >= 0:
        GUARD.pretended_choose_card(active_machine().card(torch.cuda._utils._get_device_index(device, optional=True)).index)


def _properties(machine: FakeMachine, device: Any = None) -> SimpleNamespace:
    machine.card(device)
    major, minor = machine.capability
    constants = {"total_memory": TOTAL_BYTES, "multi_processor_count": 132, "warp_size": 32, "gcnArchName": ""}
    return SimpleNamespace(name=NAME, major=major, minor=minor, **constants)


def _do_nothing(*given: Any, **named: Any) -> None:
    pass


def _replacements(shown: FakeMachine) -> dict[str, Any]:
    """Replacements of torch.cuda's attributes, by name."""
    major = shown.capability[0]

    def peak(device: Any = None) -> int:
        return max(1, shown.card(device).peak_bytes)

    def forget_peak(device: Any = None) -> None:
        shown.card(device).peak_bytes = 0

    return {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_initialized": True,
        "_is_in_bad_fork": lambda: False,
        "_lazy_init": _do_nothing,
        "init": _do_nothing,
        "device_count": lambda: len(shown.cards),
        "current_device": lambda: int(GUARD.pretended_current_card()),
        "set_device": _set_device,
        "_exchange_device": _exchange_device,
        "_maybe_exchange_device": _exchange_device,
        "get_device_name": lambda device=None: NAME,
        "get_device_capability": lambda device=None: shown.capability,
        "get_device_properties": lambda device=None: _properties(shown, device),
        "is_bf16_supported": lambda including_emulation=True: major >= 8 or including_emulation,
        "mem_get_info": lambda device=None: (shown.card(device).free_bytes, TOTAL_BYTES),
        "memory_allocated": peak,
        "max_memory_allocated": peak,
        "memory_reserved": peak,
        "reset_peak_memory_stats": forget_peak,
        "empty_cache": _do_nothing,
        "synchronize": lambda device=None: shown.wait("cuda.synchronize"),
        "manual_seed_all": lambda seed: [card.generator.manual_seed(int(seed)) for card in shown.cards],
        "get_rng_state": lambda device="cuda": shown.card(device).generator.get_state(),
        "set_rng_state": lambda state, device="cuda": shown.card(device).generator.set_state(state),
        "Event": Event,
        "Stream": Stream,
        "current_stream": lambda device=None: Stream(device),
        "is_current_stream_capturing": lambda: False,
    }


@contextmanager
def install(made: FakeMachine) -> Iterator[None]:
    """Install the fake cards inside: in torch.cuda, new threads, backward passes, and module conversion."""
    from torch.utils import _foreach_utils as lists

    changes: list[tuple[Any, str, Any]] = [(torch.cuda, name, value) for name, value in _replacements(made).items()]
    changes += [(torch.nn.Module, "_apply", _apply_by_swapping), (threading.Thread, "run", _run)]
    changes.append((torch.autograd.function.BackwardCFunction, "apply", _backward))
    changes.append((torch.backends.cuda, "is_flash_attention_available", lambda: True))
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in changes]
    types = list(lists._foreach_supported_types)
    for owner, name, value in changes:
        setattr(owner, name, value)
    offer_foreach(made, made.foreach_lists)
    try:
        yield
    finally:
        lists._foreach_supported_types[:] = types
        for owner, name, value in before:
            setattr(owner, name, value)


def offer_foreach(made: FakeMachine, whether: bool) -> None:
    """Enable or disable foreach operations on lists of tensors."""
    from torch.utils import _foreach_utils as lists

    made.foreach_lists = whether
    types = lists._foreach_supported_types
    types[:] = [one for one in types if one is not DeviceTensor] + ([DeviceTensor] if whether else [])


_plain_apply, _plain_run, _plain_backward = torch.nn.Module._apply, threading.Thread.run, torch.autograd.function.BackwardCFunction.apply


def _apply_by_swapping(self: torch.nn.Module, work: Any, recurse: bool = True) -> torch.nn.Module:
    """Module._apply that keeps the parameter objects and swaps their contents."""
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        return _plain_apply(self, work, recurse)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)


def _run(self: threading.Thread) -> None:
    with lift_cpu_numbers(), CardMode():
        _plain_run(self)


def _backward(self: Any, *gradients: Any) -> Any:
    with lift_cpu_numbers():  # runs in a thread of torch's
        return _plain_backward(self, *gradients)


@contextmanager
def lift_cpu_numbers() -> Iterator[None]:
    """Python scalars become CPU tensors first and are then moved, where a mode can see it; a per-thread setting."""
    before = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)
    try:
        yield
    finally:
        torch._C._set_only_lift_cpu_tensors(before)
