"""The fake CUDA device: operations it refuses, events it counts, and torch's own code running on it as on a GPU."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.device import fake_cuda
from tests.device.operation_counts import BACK, LAUNCH, SYNC

MIXED = "Expected all tensors to be on the same device"


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
        lambda ours, host: host + ours,
        lambda ours, host: torch.cat([ours, host]),
        lambda ours, host: torch.where(ours > 0, ours, host),
        lambda ours, host: ours.add_(host),
        lambda ours, host: host[ours[0].long()],
        lambda ours, host: host.index_select(0, torch.tensor([0], device="cuda")),
        lambda ours, host: ours.index_put_((torch.tensor([0], device="cuda"),), host[:1]),
        lambda ours, host: F.embedding(torch.tensor([0]), ours),
        lambda ours, host: torch.mm(ours, ours.T, out=torch.empty(3, 3)),
        lambda ours, host: F.scaled_dot_product_attention(ours[None, None], host[None, None], ours[None, None]),
        lambda ours, host: F.scaled_dot_product_attention(*[ours[None, None]] * 3, attn_mask=torch.ones(3, 3, dtype=torch.bool)),
        lambda ours, host: torch.repeat_interleave(ours, torch.tensor([1, 2, 3]), 0),
    ],
)
def test_tensors_of_the_host_do_not_mix_with_those_of_a_card(work):
    host = torch.randn(3, 4)
    with pytest.raises(RuntimeError, match="same device"):
        work(host.to("cuda"), host)


def test_two_cards_do_not_mix_either():
    one, other = on(2, device="cuda:0"), on(2, device="cuda:1")
    with pytest.raises(RuntimeError, match=MIXED):
        one + other
    with pytest.raises(RuntimeError, match=MIXED):
        one + other[0]  # a CPU scalar is accepted, a scalar of another card is not
    assert (one + other.to(one.device)).device == one.device
    one.copy_(other)
    assert one.equal(other.to("cuda:0"))


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
    generator = torch.Generator("cuda").manual_seed(1)
    assert generator.device == torch.device("cuda", 0)
    first = torch.randn(3, device="cuda", generator=generator)
    assert first.equal(torch.randn(3, device="cuda", generator=torch.Generator("cuda").manual_seed(1)))
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


# ---------------------------------------------------------------- torch's own code


# ---------------------------------------------------------------- attention and grouped products
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mask", ["none", "bool", "float"])
def test_attention_is_that_of_the_host(dtype, mask, machine):
    parts, visible = [torch.randn(2, 4, 16, 8, dtype=dtype) for _ in range(3)], torch.rand(2, 1, 1, 16) < 0.7
    visible[..., 0] = True
    bias = {"none": None, "bool": visible, "float": torch.zeros(visible.shape, dtype=dtype).masked_fill(~visible, float("-inf"))}[mask]
    results = []
    for device in ("cpu", "cuda"):
        own = [part.detach().clone().to(device).requires_grad_() for part in parts]
        out = F.scaled_dot_product_attention(*own, attn_mask=None if bias is None else bias.to(device))
        out.float().square().sum().backward()
        results.append([out, *(part.grad for part in own)])
    for host, ours in zip(*results, strict=True):
        assert torch.allclose(host.float(), ours.cpu().float(), atol=1e-5 if dtype == torch.float32 else 0.06)
    kernel = "flash" if dtype == torch.bfloat16 and mask == "none" else "efficient"
    assert machine.counts.count(LAUNCH, f"_scaled_dot_product_{kernel}_attention") == 1
    assert machine.counts.count(LAUNCH, f"_scaled_dot_product_{kernel}_attention_backward") == 3


def packed(width=8, dtype=torch.bfloat16, **options):
    parts = [on(8, 4, width, dtype=dtype) for _ in range(3)]
    starts = torch.tensor([0, 3, 8], dtype=options.pop("index", torch.int32), device="cuda")
    return lambda: torch.ops.aten._flash_attention_forward(*parts, starts, starts, options.get("longest", 5), 5, 0.0, False, False)[0]


@pytest.mark.parametrize(
    "work, problem",
    [
        (packed, None),
        (lambda: packed(width=12), "multiples of 8"),
        (lambda: packed(width=264), "multiples of 8"),
        (lambda: packed(dtype=torch.float32), "fp16 and bf16"),
        (lambda: packed(index=torch.int64), "int32"),
        (lambda: packed(longest=4), "longest"),
    ],
)
def test_attention_of_packed_texts_checks_what_it_is_given(work, problem):
    if problem is None:
        assert work()().shape == (8, 4, 8)
        return
    with pytest.raises(RuntimeError, match=problem):
        work()()


def test_attention_of_packed_texts_is_that_of_each_text(machine):
    parts, starts = [torch.randn(8, 4, 8, dtype=torch.bfloat16) for _ in range(3)], torch.tensor([0, 3, 8], dtype=torch.int32)
    own = [part.to("cuda").requires_grad_() for part in parts]
    with machine.counts.measure() as counts:
        sizes, window = (starts.to("cuda"), starts.to("cuda"), 5, 5), {"window_size_left": 1, "window_size_right": 1}
        out = torch.ops.aten._flash_attention_forward(*own, *sizes, 0.0, False, False, **window)[0]
    out.float().sum().backward()
    for first, last in ((0, 3), (3, 8)):
        text = [part[first:last].float().transpose(0, 1) for part in parts]
        near = (torch.arange(last - first)[:, None] - torch.arange(last - first)).abs() <= 1
        expected = F.scaled_dot_product_attention(*text, attn_mask=near).transpose(0, 1)
        assert torch.allclose(out[first:last].float().cpu(), expected, atol=0.02)
    assert counts.count(LAUNCH, "_flash_attention_forward") == 1 and machine.counts.count(LAUNCH, "_flash_attention_backward") == 3
    assert all(part.grad.dtype == torch.bfloat16 for part in own)
    with fake_cuda.activate(capability=(7, 5)), pytest.raises(RuntimeError, match="Ampere"):
        packed()()


def test_attention_of_packed_texts_drops_weights_and_its_gradient_is_of_those_that_are_left(machine):
    """Of equal scores and values of one, a token's output is the share of weights that are left, times 1 / 0.75."""
    length, starts = 512, torch.tensor([0, 512, 1024], dtype=torch.int32, device="cuda")
    queries, values = torch.zeros(1024, 2, 8, dtype=torch.bfloat16, device="cuda"), on(1024, 2, 8, dtype=torch.bfloat16) * 0 + 1
    values.requires_grad_()
    out = torch.ops.aten._flash_attention_forward(queries, queries, values, starts, starts, length, length, 0.25, False, False)[0]
    shares = out.detach().cpu().float()[..., 0]
    assert shares.mean() == pytest.approx(1.0, abs=0.01) and shares.std() == pytest.approx((0.25 / 0.75 / length) ** 0.5, rel=0.2)
    out.float().sum().backward()
    assert values.grad.cpu().float().sum() == pytest.approx(float(out.detach().cpu().float().sum()), rel=1e-2)
    assert not torch.equal(shares[:512], shares[512:])


def test_grouped_products_are_one_launch_and_have_a_derivative(machine):
    rows, weights = on(16, 24, dtype=torch.bfloat16).requires_grad_(), on(2, 24, 8, dtype=torch.bfloat16).requires_grad_()
    ends = torch.tensor([5, 16], dtype=torch.int32, device="cuda")
    counts = counted(machine, lambda: F.grouped_mm(rows, weights, offs=ends))
    assert (counts.launches, counts.syncs) == (1, 0)
    out = F.grouped_mm(rows, weights, offs=ends)
    gradient = on(16, 8, dtype=torch.bfloat16)
    out.backward(gradient)
    parts = [(slice(0, 5), 0), (slice(5, 16), 1)]
    expected = torch.cat([rows[own].float() @ weights[number].float() for own, number in parts])
    assert torch.allclose(out.float(), expected, atol=0.1)
    assert torch.allclose(rows.grad[:5].float(), gradient[:5].float() @ weights[0].float().T, atol=0.1)
    assert torch.allclose(weights.grad[1].float(), rows[5:].float().T @ gradient[5:].float(), atol=0.1)
    with fake_cuda.activate(capability=(8, 6)) as older:  # no kernel: the offsets are copied to the host
        F.grouped_mm(on(16, 24, dtype=torch.bfloat16), on(2, 24, 8, dtype=torch.bfloat16), offs=torch.tensor([5, 16], device="cuda").int())
        assert older.counts.count(SYNC, "_grouped_mm without a kernel") == 1


# ---------------------------------------------------------------- what is counted
WAITING = {
    "item": lambda ours: ours.sum().item(),
    "bool": lambda ours: bool((ours > 0).any()),
    "tolist": lambda ours: ours.tolist(),
    "cpu": lambda ours: ours.cpu(),
    "nonzero": lambda ours: ours.nonzero(),
    "mask": lambda ours: ours[ours > 0],
    "masked_select": lambda ours: ours.masked_select(ours > 0),
    "unique": lambda ours: ours.unique(),
    "equal": lambda ours: ours.equal(ours),
    "repeat_interleave": lambda ours: ours.repeat_interleave(torch.ones(6, dtype=torch.int64, device="cuda")),
    "copy_": lambda ours: torch.empty(6).copy_(ours),
    "synchronize": lambda ours: torch.cuda.synchronize(),
    "event": lambda ours: torch.cuda.Event().synchronize(),
    "stream": lambda ours: torch.cuda.current_stream().synchronize(),
}


@pytest.mark.parametrize("name", WAITING)
def test_what_waits_is_counted_once(name, machine):
    ours = on(6)
    assert counted(machine, lambda: WAITING[name](ours)).syncs == 1


STEADY = {
    "views": (lambda ours: ours.view(2, 3).T.unsqueeze(0).expand(4, 3, 2)[0, 1:].detach(), 0),
    "sum": (lambda ours: (ours * 2).sum(), 2),
    "sort": (lambda ours: ours.sort(), 1),
    "where": (lambda ours: torch.where(ours > 0, ours, 0.0), 3),  # the scalar becomes a tensor first
    "masked number": (lambda ours: ours.__setitem__(ours > 0, 1.0), 2),
    "told": (lambda ours: ours.repeat_interleave(torch.ones(6, dtype=torch.int64, device="cuda"), output_size=6), None),
    "index": (lambda ours: ours[torch.arange(3, device="cuda")], 2),
    "topk": (lambda ours: ours.topk(2), 1),
    "empty": (lambda ours: torch.empty_like(ours), 0),
}


@pytest.mark.parametrize("name", STEADY)
def test_what_does_not_wait_is_not_counted_as_waiting(name, machine):
    ours = on(6)
    work, launches = STEADY[name]
    counts = counted(machine, lambda: work(ours))
    assert (counts.syncs, counts.blocking) == (0, 0)
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
