"""The fake CUDA device: operations it refuses, events it counts, and torch's own code running on it as on a GPU."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.device import fake_cuda
from tests.device.operation_counts import BACK


def on(*shape, device="cuda", **options):
    return torch.randn(*shape, **options).to(device)


def counted(machine, work):
    with machine.counts.measure() as counts:
        work()
    return counts


@pytest.mark.parametrize(
    "work",
    [
        lambda ours, host: ours + host,
        lambda ours, host: torch.where(ours > 0, ours, host),
        lambda ours, host: ours.add_(host),
        lambda ours, host: host[ours[0].long()],
        lambda ours, host: ours.index_put_((torch.tensor([0], device="cuda"),), host[:1]),
        lambda ours, host: torch.mm(ours, ours.T, out=torch.empty(3, 3)),
        lambda ours, host: F.scaled_dot_product_attention(ours[None, None], host[None, None], ours[None, None]),
        lambda ours, host: ours + ours.to("cuda:1"),
        lambda ours, host: ours + ours.to("cuda:1")[0, 0],  # a CPU scalar is accepted, a scalar of another card is not
    ],
)
def test_tensors_of_the_host_and_of_two_cards_do_not_mix(work):
    host = torch.randn(3, 4)
    with pytest.raises(RuntimeError, match="same device"):
        work(host.to("cuda"), host)
    one, other = on(2, device="cuda:0"), on(2, device="cuda:1")
    assert one.copy_(other).equal(other.to("cuda:0"))


@pytest.mark.parametrize("work", [lambda ours: ours.numpy(), np.asarray, lambda ours: np.array([ours, ours])])
def test_numpy_is_reached_through_the_host_only(work):
    with pytest.raises(TypeError, match=r"Use Tensor\.cpu"):
        work(on(2))
    assert on(2).cpu().numpy().shape == (2,)


def test_cards_memory_and_capability_are_chosen():
    with fake_cuda.activate(cards=1, capability=(7, 5), free_bytes=1000):
        assert torch.cuda.device_count() == 1 and torch.cuda.get_device_capability() == (7, 5)
        assert torch.cuda.mem_get_info()[0] == 1000
        torch.zeros(200, device="cuda")
        assert torch.cuda.max_memory_allocated() == 800
        with pytest.raises(torch.OutOfMemoryError, match=r"out of memory\. Tried to allocate"):
            torch.zeros(300, device="cuda")
    assert torch.cuda.device_count() == 2


def test_cards_draw_numbers_of_their_own_that_a_seed_brings_back():
    torch.manual_seed(5)
    host, state = torch.randn(3), torch.cuda.get_rng_state()
    first = torch.randn(3, device="cuda")
    torch.randn(9)  # the CPU generator is independent of the card's
    torch.cuda.set_rng_state(state)
    assert torch.randn(3, device="cuda").equal(first)
    torch.manual_seed(5)
    assert torch.randn(3).equal(host) and torch.randn(3, device="cuda").equal(first)
    with pytest.raises(RuntimeError, match="device type for generator"):
        torch.randn(3, device="cuda", generator=torch.Generator())


def test_strict_determinism_refuses_what_cuda_has_no_form_of(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    ours = on(3, 4)
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(RuntimeError, match="CUBLAS_WORKSPACE_CONFIG"):
            ours @ ours.T
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        assert (ours @ ours.T).shape == (3, 3) and ours.long().cumsum(0).is_cuda
        with pytest.raises(RuntimeError, match="deterministic"):
            ours.cumsum(0)
        torch.use_deterministic_algorithms(True, warn_only=True)
        with pytest.warns(UserWarning, match="deterministic"):
            ours.cumsum(0)
    finally:
        torch.use_deterministic_algorithms(False)


def packed_attention(width=8, dtype=torch.bfloat16, index=torch.int32, longest=5):
    parts = [on(8, 4, width, dtype=dtype) for _ in range(3)]
    starts = torch.tensor([0, 3, 8], dtype=index, device="cuda")
    return torch.ops.aten._flash_attention_forward(*parts, starts, starts, longest, 5, 0.0, False, False)[0]


@pytest.mark.parametrize(
    "options, problem",
    [
        ({"width": 12}, "multiples of 8"),
        ({"width": 264}, "multiples of 8"),
        ({"dtype": torch.float32}, "fp16 and bf16"),
        ({"index": torch.int64}, "int32"),
        ({"longest": 4}, "longest"),
    ],
)
def test_attention_of_packed_texts_checks_its_arguments(options, problem):
    assert packed_attention().shape == (8, 4, 8)
    with pytest.raises(RuntimeError, match=problem):
        packed_attention(**options)


@pytest.mark.parametrize("capability, launches, waits", [((9, 0), 1, 0), ((8, 6), 2, 1)])
def test_grouped_products_wait_for_nothing_where_there_is_a_kernel(capability, launches, waits):
    with fake_cuda.activate(capability=capability) as machine:
        rows, weights = on(16, 24, dtype=torch.bfloat16), on(2, 24, 8, dtype=torch.bfloat16)
        ends = torch.tensor([5, 16], dtype=torch.int32, device="cuda")
        counts = counted(machine, lambda: F.grouped_mm(rows, weights, offs=ends))
    assert (counts.launches, counts.syncs) == (launches, waits)


COSTS = {  # work, waits of the host, and launches where they are known
    "item": (lambda ours: ours.sum().item(), 1, None),
    "cpu": (lambda ours: ours.cpu(), 1, None),
    "nonzero": (lambda ours: ours.nonzero(), 1, None),
    "mask": (lambda ours: ours[ours > 0], 1, None),
    "unique": (lambda ours: ours.unique(), 1, None),
    "equal": (lambda ours: ours.equal(ours), 1, None),
    "repeat_interleave": (lambda ours: ours.repeat_interleave(torch.ones(6, dtype=torch.int64, device="cuda")), 1, None),
    "copy_": (lambda ours: torch.empty(6).copy_(ours), 1, None),
    "synchronize": (lambda ours: torch.cuda.synchronize(), 1, None),
    "event": (lambda ours: torch.cuda.Event().synchronize(), 1, None),
    "views": (lambda ours: ours.view(2, 3).T.unsqueeze(0).expand(4, 3, 2)[0, 1:].detach(), 0, 0),
    "where": (lambda ours: torch.where(ours > 0, ours, 0.0), 0, 3),  # the scalar becomes a tensor first
    "masked number": (lambda ours: ours.__setitem__(ours > 0, 1.0), 0, 2),
    "size": (lambda ours: ours.repeat_interleave(torch.ones(6, dtype=torch.int64, device="cuda"), output_size=6), 0, None),
    "index": (lambda ours: ours[torch.arange(3, device="cuda")], 0, 2),
    "empty": (lambda ours: torch.empty_like(ours), 0, 0),
}


@pytest.mark.parametrize("name", COSTS)
def test_waits_and_launches_are_counted(name, machine):
    ours = on(6)
    work, waits, launches = COSTS[name]
    counts = counted(machine, lambda: work(ours))
    assert (counts.syncs, counts.blocking) == (waits, 0)
    assert launches is None or counts.launches == launches


def test_copies_block_unless_they_are_pinned_and_told_not_to(machine):
    host, pinned = torch.randn(4), torch.randn(4).pin_memory()
    assert pinned.is_pinned() and pinned[1:].is_pinned() and not host.is_pinned()
    assert torch.empty(3, pin_memory=True).is_pinned()
    ways = {
        "plain": lambda: host.to("cuda"),
        "unpinned": lambda: host.to("cuda", non_blocking=True),
        "blocking": lambda: pinned.to("cuda"),
        "tensor": lambda: torch.tensor([1.0], device="cuda"),
        "as_tensor": lambda: torch.as_tensor(np.ones(2), device="cuda"),
        "new_tensor": lambda: torch.zeros(1, device="cuda").new_tensor([1.0]),
        "index": lambda: torch.zeros(4, device="cuda")[torch.tensor([1])],
        "copy_": lambda: torch.empty(4, device="cuda").copy_(pinned),
        "ahead": lambda: pinned.to("cuda", non_blocking=True),
        "copy_ ahead": lambda: torch.empty(4, device="cuda").copy_(pinned, non_blocking=True),
    }
    results = {name: counted(machine, work) for name, work in ways.items()}
    assert {name: (counts.blocking, counts.copies) for name, counts in results.items()} == {
        name: (0, 1) if name.endswith("ahead") else (1, 0) for name in ways
    }


def test_a_copy_to_the_host_that_does_not_block_is_not_there_before_somebody_waits(machine):
    ours = torch.tensor([1.0, 2.0], device="cuda")
    with machine.counts.measure() as counts:
        host = ours.to("cpu", non_blocking=True)
    assert counts.syncs == 0 and counts.count(BACK) == 1 and host.is_pinned()
    assert host.isnan().all()
    event = torch.cuda.Event()
    event.record()
    later = (ours + 1).to("cpu", non_blocking=True)
    event.synchronize()
    assert host.tolist() == [1.0, 2.0] and later.isnan().all()
    torch.cuda.synchronize()
    assert later.tolist() == [2.0, 3.0]
