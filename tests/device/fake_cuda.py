"""A fake CUDA device: tensors that report `cuda:0`, store their numbers in host memory, and refuse what a GPU refuses.

    from tests.device import guard
    guard.load()                                   # before torch is imported
    from tests.device import fake_cuda
    with fake_cuda.activate(cards=2) as machine:
        (torch.arange(3, device="cuda") + 1).cpu()
    machine.counts.launches

A tensor subclass carries the device, a dispatch mode catches operations without such tensors (factories, copies from the host); both
call `dispatch`, which checks devices, runs the operation on the host's numbers, counts it and wraps its result. torch's code above that is
the real one: autograd, autocast, the selection and derivative of attention kernels. The target of a non-blocking copy to pinned memory
contains noise until the host has waited.

Not simulated: time, memory except for a single tensor larger than the free memory, a GPU's order of summation, and streams.
"""

import os
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.device import guard
from tests.device.operation_counts import BACK, BLOCKING, COPY, LAUNCH, SYNC, OperationCounts

GUARD = guard.load()
TOTAL_BYTES = 80 << 30


class NotSimulated(Exception):
    """The behaviour of a GPU for this operation is not implemented."""


@dataclass
class Card:
    """One GPU: its random generator, its memory, and pending copies to the host."""

    index: int
    free_bytes: int
    generator: torch.Generator = field(default_factory=torch.Generator)
    peak_bytes: int = 0
    pending_copies: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def finish_copies(self, count: int | None = None) -> None:
        """Finish the first `count` pending copies to the host, or all."""
        finished, self.pending_copies = self.pending_copies[:count], [] if count is None else self.pending_copies[count:]
        for target, source in finished:
            _write(target, source)

    def allocate(self, size: int) -> None:
        """Allocate memory for a tensor."""
        if size > self.free_bytes:
            raise out_of_memory(size, self)
        self.peak_bytes = max(self.peak_bytes, size)


@dataclass
class FakeMachine:
    """The cards, and the operation counts of all of them.

    `fail_at` is the number of launches after which an out-of-memory error is raised; `foreach_lists` enables foreach operations on lists of
    tensors, as on CUDA: without them gradients are clipped tensor by tensor.
    """

    cards: list[Card]
    capability: tuple[int, int]
    counts: OperationCounts = field(default_factory=OperationCounts)
    fail_at: int | None = None
    foreach_lists: bool = True

    def card(self, device: torch.device | str | int | None = None) -> Card:
        """The card of a device; the current one for None or a device without an index."""
        if isinstance(device, str):
            device = torch.device(device)
        index = device.index if isinstance(device, torch.device) else device
        index = GUARD.pretended_current_card() if index is None else index
        if not 0 <= index < len(self.cards):
            raise RuntimeError("CUDA error: invalid device ordinal")
        return self.cards[index]

    def launch(self, name: str, count: int = 1) -> None:
        """Count an operation on the device."""
        if self.fail_at is not None:
            self.fail_at -= 1
            if self.fail_at < 0:
                self.fail_at = None
                raise out_of_memory(1 << 30, self.card())
        self.counts.add(LAUNCH, name, count=count)

    def wait(self, name: str, count: int = 1) -> None:
        """Count a host sync and finish all pending copies."""
        self.counts.add(SYNC, name, count=count)
        for card in self.cards:
            card.finish_copies()


def out_of_memory(size: int, card: Card) -> torch.OutOfMemoryError:
    """torch's out-of-memory error."""
    wanted, free = size / 2**20, card.free_bytes / 2**20
    text = f"CUDA out of memory. Tried to allocate {wanted:.2f} MiB. GPU {card.index} has a total capacity of {TOTAL_BYTES / 2**30:.2f} GiB"
    return torch.OutOfMemoryError(f"{text} of which {free:.2f} MiB is free.")


_machines: list[FakeMachine] = []


def active_machine() -> FakeMachine:
    """The active fake machine."""
    if not _machines:
        raise NotSimulated("the fake device is not active")
    return _machines[-1]


class DeviceTensor(torch.Tensor):
    """A tensor on a fake card; `host` has its numbers."""

    host: Tensor

    @staticmethod
    def __new__(cls, host: Tensor, card: int) -> "DeviceTensor":
        assert type(host) is not DeviceTensor and host.device.type == "cpu", host.device
        with torch.inference_mode(False):
            tensor = torch.Tensor._make_wrapper_subclass(
                cls,
                host.size(),
                strides=host.stride(),
                storage_offset=host.storage_offset(),
                dtype=host.dtype,
                layout=host.layout,
                device=torch.device("cuda", card),
                requires_grad=False,
            )
        tensor.host = host
        return tensor

    def __init__(self, host: Tensor, card: int) -> None:
        pass

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return dispatch(func, args, kwargs or {})

    @property
    def data(self) -> Tensor:  # type: ignore[override]
        return self.detach()

    @data.setter
    def data(self, other: Tensor) -> None:
        if type(other) is not DeviceTensor or (other.shape, other.dtype, other.device) != (self.shape, self.dtype, self.device):
            raise NotSimulated("tensor.data = another kind of tensor")
        self.host = other.host

    def tolist(self) -> Any:
        return self.detach().cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        if force:
            return self.detach().cpu().numpy()
        advice = "Use Tensor.cpu() to copy the tensor to host memory first."
        raise TypeError(f"can't convert {self.device} device type tensor to numpy. {advice}")

    def __array__(self, *options: Any, **named: Any) -> Any:
        return self.numpy()

    def data_ptr(self) -> int:
        return self.host.data_ptr()

    def untyped_storage(self) -> Any:
        return self.host.untyped_storage()


class CardMode(TorchDispatchMode):
    """Catches operations without a device tensor among their arguments."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # it would import torch's compiler

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return dispatch(func, args, kwargs or {})


NO_KERNEL = {  # host only
    *("empty.memory_format", "empty_strided", "empty_like", "new_empty", "new_empty_strided", "lift_fresh", "detach_", "set_"),
    *("_has_same_storage_numel", "is_same_size", "record_stream", "_unsafe_view", "_reshape_alias"),
    *("unsqueeze_", "squeeze_", "squeeze_.dim", "transpose_", "t_"),
}
WAITS = {  # host syncs inside the operation
    "nonzero": 1, "masked_select": 1, "_unique2": 1, "unique_dim": 1, "unique_consecutive": 1, "bincount": 2, "equal": 1, "histc": 1,
    "multinomial": 1, "repeat_interleave.Tensor": 1,
}  # fmt: skip
INDEXING = {"index.Tensor", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index.Tensor"}
HOST_NUMBER = {"masked_fill.Tensor", "masked_fill_.Tensor", "where.self", "fill_.Tensor", "fill.Tensor", "lerp.Tensor", "lerp.Scalar"}
PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "dot"}
NOT_DETERMINISTIC = {"_embedding_bag_dense_backward", "kthvalue", "median.dim", "nanmedian.dim", "histc", "put_", "index_reduce_"}
FROM_HOST = ("_like", "_like.generator")


@dataclass(frozen=True)
class OperationFacts:
    """Facts about an operation: its name without `aten::`, and the properties that decide how it is dispatched."""

    name: str
    composite: bool
    view: bool
    pointwise: bool
    in_place: bool
    random: bool
    tensor_lists: bool


_facts_cache: dict[Any, OperationFacts] = {}


def operation_facts(func: Any) -> OperationFacts:
    """The facts about an operation, cached."""
    if func not in _facts_cache:
        schema, name = func._schema, func.name().removeprefix("aten::")
        _facts_cache[func] = OperationFacts(
            name,
            torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"),
            func.is_view or name == "detach" or name == "alias",
            torch.Tag.pointwise in func.tags,
            schema.is_mutable and name.split(".")[0].endswith("_"),
            torch.Tag.nondeterministic_seeded in func.tags or any(argument.name == "generator" for argument in schema.arguments),
            name.startswith(("_foreach", "_fused", "_amp_foreach")),
        )
    return _facts_cache[func]


HANDLERS: dict[str, Callable[..., Any]] = {}


def handler_for(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a handler for operations: (operation, arguments, options) -> result."""

    def add(work: Callable[..., Any]) -> Callable[..., Any]:
        HANDLERS.update(dict.fromkeys(names, work))
        return work

    return add


def dispatch(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run one operation on tensors of the host and of cards."""
    ours: list[DeviceTensor] = []
    theirs: list[Tensor] = []
    device = _sort_tensors((*args, *kwargs.values()), ours, theirs, None)
    if not ours and device is None:
        return func(*args, **kwargs)
    fact = operation_facts(func)
    if fact.name in HANDLERS:
        return HANDLERS[fact.name](func, *args, **kwargs)
    if fact.composite:  # inference mode does not decompose composite operations
        with CardMode():
            return func._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)
    if not ours:
        return _create_on_card(func, fact, args, kwargs, device, theirs)
    _check_devices(fact, args, kwargs, ours, theirs)
    if torch.are_deterministic_algorithms_enabled():
        _check_determinism(fact, args, kwargs, ours)
    card = ours[0].device.index
    if device is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
        card = active_machine().card(device).index if device.type == "cuda" else None
    out = _host_run(func, fact, args, kwargs, ours[0].device.index)
    _count(fact, args, kwargs)
    return out if card is None else _wrap(out, card, {id(one.host): one for one in ours}, fact)


def _sort_tensors(values: Any, ours: list[DeviceTensor], theirs: list[Tensor], device: torch.device | None) -> torch.device | None:
    """Sort the tensors into those of a card and those of the host; return the requested device if cards are involved."""
    for one in values:
        if isinstance(one, DeviceTensor):
            ours.append(one)
        elif isinstance(one, Tensor):
            theirs.append(one)
        elif isinstance(one, (list, tuple)):
            device = _sort_tensors(one, ours, theirs, device)
        elif isinstance(one, torch.device) and (one.type == "cuda" or ours):
            device = one
    return device


def _create_on_card(func: Any, fact: OperationFacts, args: Any, kwargs: dict[str, Any], device: torch.device, theirs: list[Tensor]) -> Any:
    """Create a tensor on a card from arguments without card tensors."""
    if theirs and not (fact.name.endswith(FROM_HOST) or fact.name.startswith("new_")):
        raise NotSimulated(f"{fact.name} of tensors of the host for {device}")
    card = active_machine().card(device).index
    kwargs = {key: value for key, value in kwargs.items() if key != "pin_memory"} | {"device": torch.device("cpu")}
    out = _host_run(func, fact, args, kwargs, card)
    if fact.name not in NO_KERNEL:
        active_machine().launch(fact.name)
    return _wrap(out, card, {}, fact)


def _host_run(func: Any, fact: OperationFacts, args: Any, kwargs: dict[str, Any], card: int) -> Any:
    """Run the operation on the host's numbers, with the card's random generator."""
    args, kwargs = _on_host(args), {key: _on_host(value) for key, value in kwargs.items() if key != "pin_memory"}
    if kwargs.get("generator") is not None:
        raise RuntimeError(f"Expected a 'cuda:{card}' device type for generator but found '{kwargs['generator'].device}'")
    if fact.random:
        return run_with_card_generator(card, lambda: func(*args, **kwargs))
    return func(*args, **kwargs)


_random_lock = threading.Lock()


def run_with_card_generator(card: int, work: Callable[[], Any]) -> Any:
    """Run a function that uses the CPU generator with a card's generator state."""
    generator = active_machine().cards[card].generator
    with _random_lock:
        before = torch.get_rng_state()
        torch.set_rng_state(generator.get_state())
        try:
            return work()
        finally:
            generator.set_state(torch.get_rng_state())
            torch.set_rng_state(before)


def _on_host(value: Any) -> Any:
    if isinstance(value, DeviceTensor):
        return value.host
    if isinstance(value, (list, tuple)):
        return type(value)(_on_host(one) for one in value)
    return value


def _wrap(out: Any, card: int, back: dict[int, DeviceTensor], fact: OperationFacts) -> Any:
    """Wrap the host's result as a tensor on the card; an in-place operation returns its argument."""
    if isinstance(out, Tensor):
        if (same := back.get(id(out))) is not None:
            if same.shape != out.shape or same.stride() != out.stride():
                raise NotSimulated(f"{fact.name} gives its argument another shape: {tuple(same.shape)} -> {tuple(out.shape)}")
            return same
        if not fact.view:
            active_machine().cards[card].allocate(out.nbytes if out.layout == torch.strided else 0)
        return DeviceTensor(out, card)
    if isinstance(out, (list, tuple)):
        return type(out)(_wrap(one, card, back, fact) for one in out)
    return out


def _check_devices(fact: OperationFacts, args: Any, kwargs: dict[str, Any], ours: list[DeviceTensor], theirs: list[Tensor]) -> None:
    """Refuse what CUDA refuses: tensors of two cards, and CPU tensors other than scalars and indices where kernels accept them."""
    if fact.name in PRODUCTS and not (ours[0].is_floating_point() or ours[0].is_complex()):
        raise RuntimeError(f"\"addmm_cuda\" not implemented for '{str(ours[0].dtype).removeprefix('torch.').title()}'")
    others = {one.device for one in ours}
    if len(others) > 1:
        raise _device_mismatch(fact, *sorted(map(str, others)))
    if not theirs:
        return
    if fact.name in INDEXING:
        values = args[2] if len(args) > 2 else kwargs.get("values")
        allowed = isinstance(args[0], DeviceTensor)
        allowed &= not isinstance(values, Tensor) or isinstance(values, DeviceTensor) or values.dim() == 0
    elif fact.pointwise or fact.name in HOST_NUMBER or fact.tensor_lists:
        outs = [value for key, value in kwargs.items() if key.startswith("out") and isinstance(value, Tensor)]
        outputs = [args[0], *outs] if fact.in_place else outs
        allowed = all(isinstance(one, DeviceTensor) for one in outputs if isinstance(one, Tensor)) and all(one.dim() == 0 for one in theirs)
    else:
        allowed = False
    if not allowed:
        raise _device_mismatch(fact, str(ours[0].device), "cpu")


def _check_determinism(fact: OperationFacts, args: Any, kwargs: dict[str, Any], ours: list[DeviceTensor]) -> None:
    """Raise, or warn, for operations without a deterministic form on CUDA, as `torch.use_deterministic_algorithms` does."""
    problem = None
    if fact.name in PRODUCTS and os.environ.get("CUBLAS_WORKSPACE_CONFIG") not in (":4096:8", ":16:8"):
        problem = "CuBLAS is deterministic only with CUBLAS_WORKSPACE_CONFIG=:4096:8 or :16:8"
    elif fact.name in NOT_DETERMINISTIC or (fact.name == "cumsum" and ours[0].is_floating_point()):
        problem = f"{fact.name} does not have a deterministic implementation"
    elif fact.name.startswith("scatter_reduce") and not {"amax", "amin"} & {
        one for one in (*args, *kwargs.values()) if isinstance(one, str)
    }:
        problem = "scatter_reduce that adds does not have a deterministic implementation"
    elif fact.name == "bincount" and len(ours) > 1:
        problem = "bincount with weights does not have a deterministic implementation"
    if problem and torch.is_deterministic_algorithms_warn_only_enabled():
        warnings.warn(problem, UserWarning, stacklevel=3)
    elif problem:
        raise RuntimeError(problem)


def _device_mismatch(fact: OperationFacts, one: str, other: str) -> RuntimeError:
    return RuntimeError(f"Expected all tensors to be on the same device, but found at least two devices, {one} and {other}! ({fact.name})")


def _count(fact: OperationFacts, args: Any, kwargs: dict[str, Any]) -> None:
    """Count the costs of an operation on device tensors."""
    if fact.view or fact.name in NO_KERNEL:
        return
    name, current = fact.name, active_machine()
    if name in INDEXING and _count_indexing(name, args):
        return
    if name in WAITS and kwargs.get("output_size") is None:
        current.wait(name, WAITS[name])
    current.launch(name)


def _count_indexing(name: str, args: Any) -> bool:
    """Count the costs of the indices; return whether that is the whole operation, as for a scalar under a single mask."""
    current, indices = active_machine(), [one for one in args[1] if one is not None]
    masks = [one for one in indices if one.dtype in (torch.bool, torch.uint8)]
    number = len(args) > 2 and isinstance(args[2], Tensor) and args[2].numel() == 1
    if name != "index.Tensor" and number and len(indices) == len(masks) == 1 and isinstance(masks[0], DeviceTensor):
        current.launch("masked_fill_")
        return True
    for one in indices:
        if not isinstance(one, DeviceTensor):
            current.counts.add(BLOCKING, f"{name} by an index of the host")
    for _ in masks:
        current.launch("nonzero")
        current.wait(f"{name} by a mask")
    return False


@handler_for("_local_scalar_dense")
def _item(func: Any, tensor: DeviceTensor) -> Any:
    active_machine().counts.add(BACK, "item")
    active_machine().wait("item")
    return func(tensor.host)


@handler_for("_pin_memory")
def _pin(func: Any, tensor: Tensor, device: Any = None) -> Tensor:
    if isinstance(tensor, DeviceTensor):
        raise RuntimeError(f"cannot pin '{tensor.type()}' only dense CPU tensors can be pinned")
    return func(tensor)


@handler_for("is_pinned")
def _is_pinned(func: Any, tensor: Tensor, device: Any = None) -> bool:
    return not isinstance(tensor, DeviceTensor) and func(tensor)


@handler_for("_to_copy")
def _to_copy(func: Any, source: Tensor, **kwargs: Any) -> Tensor:
    current, device = active_machine(), kwargs.get("device")
    ours = isinstance(source, DeviceTensor)
    device = source.device if device is None else torch.device(device)
    options = {key: value for key, value in kwargs.items() if key in ("dtype", "memory_format", "layout")}
    non_blocking = bool(kwargs.get("non_blocking"))
    host = func(source.host if ours else source, **options)
    if device.type != "cuda":
        return _to_host(source, host, non_blocking=non_blocking) if ours else host
    card = current.card(device)
    if not ours:
        _to_card(source, non_blocking=non_blocking)
    else:
        current.launch("_to_copy")
    card.allocate(host.nbytes)
    return DeviceTensor(host, card.index)


def _to_card(source: Tensor, *, non_blocking: bool) -> None:
    kind = COPY if non_blocking and source.is_pinned() else BLOCKING
    active_machine().counts.add(kind, "to the device" if non_blocking == (kind == COPY) else "to the device, not pinned")


def _to_host(source: DeviceTensor, host: Tensor, *, non_blocking: bool) -> Tensor:
    """A copy in host memory; if non-blocking, pinned and filled later."""
    current = active_machine()
    current.counts.add(BACK, "to the host")
    if source.dtype != host.dtype or not source.host.is_contiguous():
        current.launch("_to_copy before the host")
    if not non_blocking:
        current.wait("copy to the host")
        return host
    target = torch.empty_like(host, pin_memory=True)
    _defer_copy(current.card(source.device), target, host)
    return target


def _defer_copy(card: Card, target: Tensor, source: Tensor) -> None:
    noise = torch.full_like(source, float("nan") if source.is_floating_point() else 1 if source.dtype == torch.bool else 99)
    _write(target, noise)
    card.pending_copies.append((target, source))


def _write(target: Tensor, source: Tensor) -> None:
    with torch.inference_mode(target.is_inference()), torch.no_grad():
        target.copy_(source)


@handler_for("copy_", "copy")
def _copy_into(func: Any, target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    current = active_machine()
    to, of = isinstance(target, DeviceTensor), isinstance(source, DeviceTensor)
    if of and not to:
        current.counts.add(BACK, "copy_ to the host")
        if non_blocking and target.is_pinned() and func._schema.name == "aten::copy_":
            _defer_copy(current.card(source.device), target, source.host.to(target.dtype).expand(target.shape).clone())
            return target
        current.wait("copy_ to the host")
    elif to and not of:
        _to_card(source, non_blocking=non_blocking)
    else:
        current.launch("copy_")
    result = func(_on_host(target), _on_host(source), non_blocking)
    if func._schema.name == "aten::copy_":
        return target
    return DeviceTensor(result, target.device.index) if to else result


@contextmanager
def activate(
    *, cards: int = 2, capability: tuple[int, int] = (9, 0), free_bytes: int = TOTAL_BYTES * 9 // 10, lists: bool = True
) -> Iterator[FakeMachine]:
    """Activate the fake device inside, in this thread and in every thread started inside."""
    from tests.device import fake_attention, fake_torch_cuda

    assert fake_attention.HANDLERS is HANDLERS
    fake = FakeMachine([Card(index, free_bytes) for index in range(cards)], capability, foreach_lists=lists)
    GUARD.pretended_set_cards(cards)
    GUARD.pretended_choose_card(0)
    _machines.append(fake)
    for card in fake.cards:
        card.generator.manual_seed(torch.initial_seed() % 2**63)
    with ExitStack() as stack:
        stack.callback(_machines.pop)
        stack.enter_context(fake_torch_cuda.install(fake))
        stack.enter_context(fake_torch_cuda.lift_cpu_numbers())
        stack.enter_context(CardMode())
        yield fake
