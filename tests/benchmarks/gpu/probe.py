"""Part 0: two minutes of measurements that decide what to change first, each by itself: realised dropout, new shapes, attention, experts
without rows, settings of float32, top-k, cross-entropy, a layer's projection, the optimiser, a training step. `G1` to `G12` are findings by
reading."""

import copy
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from moeir.backbones.config import EncoderConfig
from moeir.backbones.layers import Attention, store_adjacent
from moeir.indexes.two_step import select_best
from moeir.kernels import attention
from moeir.kernels.fused_cross_entropy import Reduction, fused_linear_cross_entropy, reduce_logits
from moeir.kernels.grouped_linear import ExpertGroups, grouped_linear
from moeir.kernels.precision import full_precision
from tests.benchmarks.gpu import stages, steps
from tests.benchmarks.gpu.results import Context

HALF, RATE = torch.bfloat16, 0.1
Facts = dict[str, object]


def probe(context: Context) -> None:
    """Every probe, whose facts are lines of one table."""
    table = context.table("What each probe found:", "probe", "of what", "found")
    context.piece.facts["cuDNN"] = str(torch.backends.cudnn.version())
    for work in PROBES:
        if not context.has_time(20, work.__name__):
            continue
        with context.attempt(work.__name__):
            for name, value in work(context).items():
                table.add(work.__name__, name, value)
        stages.release_memory()


def seconds_of(context: Context, work: Callable[[], object]) -> float:
    """Median seconds on the device's clock."""
    return stages.time_on_device(work, 1 if context.toy else 10)


def host_microseconds(work: Callable[[], object], count: int) -> float:
    """Microseconds of the host for one call, the device far behind."""
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(count):
        work()
    taken = time.perf_counter() - began
    torch.cuda.synchronize()
    return 1e6 * taken / count


@contextmanager
def cudnn(allowed: bool) -> Iterator[None]:
    """Scaled-dot-product attention with or without cuDNN's kernels."""
    torch.backends.cuda.enable_cudnn_sdp(allowed)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(True)


def ceilings(context: Context) -> Facts:
    """Peaks of products and copies, products of a layer's sizes, and a launch."""
    side = 64 if context.toy else 8192
    big = torch.zeros(2**10 if context.toy else 2**30, device="cuda", dtype=HALF)
    into, small = torch.empty_like(big), torch.zeros(64, device="cuda")
    facts: Facts = {"TFLOP/s of a product": stages.measure_peak(context.toy) / 1e12}
    facts["TB/s of a copy"] = 2 * big.nbytes / seconds_of(context, lambda: into.copy_(big)) / 1e12
    for rows in (side,) if context.toy else (4_500, 36_000):
        for inner, outer in ((64, 64),) if context.toy else ((768, 2304), (768, 768), (768, 3072), (3072, 768)):
            inputs, weight = (torch.randn(size, inner, device="cuda", dtype=HALF) for size in (rows, outer))
            taken = seconds_of(context, lambda inputs=inputs, weight=weight: F.linear(inputs, weight))
            facts[f"TFLOP/s of {rows} × {inner} × {outer}"] = 2 * rows * inner * outer / taken / 1e12
    facts["µs of a launch"] = host_microseconds(lambda: small.add_(1), 20 if context.toy else 2000)
    return facts


def realised_dropout(context: Context) -> Facts:
    """G1. Rate and scale of dropped attention weights that are equal, from mean and variance; .1 and 1.111 are right. cuDNN's is not used
    by moeir, FlashAttention over cumulative lengths is."""
    length, texts_ = 32 if context.toy else 128, 2 if context.toy else 64
    heads, facts = (texts_, 4, length, 64), Facts()
    query, value = (torch.full(heads, number, device="cuda", dtype=HALF) for number in (0.0, 1.0))
    mask = torch.zeros(texts_, 1, 1, length, device="cuda", dtype=HALF)
    starts = torch.arange(texts_ + 1, device="cuda") * length
    layout = attention.PackedLayout((length,) * texts_, starts)
    packed = [part.transpose(1, 2).flatten(0, 1) for part in (query, query, value)]

    def estimate(output: Tensor) -> str:
        numbers = output[..., 0].detach().float()
        mean, odds = float(numbers.mean()), float(numbers.var() * length / numbers.mean() ** 2)
        return f"rate {odds / (1 + odds):.4f}, scale {mean * (1 + odds):.4f}"

    for allowed in (True, False):
        with cudnn(allowed):
            output = F.scaled_dot_product_attention(query, query, value, attn_mask=mask, dropout_p=RATE)
        facts[f"padded, cuDNN {'allowed' if allowed else 'off'}"] = estimate(output)
    facts["moeir"] = estimate(attention.attention(*packed, layout, dropout=RATE))
    facts["moeir, padded"] = estimate(attention.padded_sdpa(*packed, layout, layout.padded_mask(None, HALF), RATE))
    return facts


def new_shapes(context: Context) -> Facts:
    """G2. Host milliseconds of forward and backward of a padded batch whose shape is new."""
    facts: Facts = {}
    for allowed in (True, False):
        taken = []
        for number in range(3 if context.toy else 12):
            query = torch.randn(2 + number if context.toy else 61 + number, 4, 16 if context.toy else 144, 64, device="cuda", dtype=HALF)
            query.requires_grad_()
            mask = torch.zeros(len(query), 1, 1, query.shape[2], device="cuda", dtype=HALF)
            torch.cuda.synchronize()
            began = time.perf_counter()
            with cudnn(allowed):
                F.scaled_dot_product_attention(query, query, query, attn_mask=mask, dropout_p=RATE).sum().backward()
            torch.cuda.synchronize()
            taken.append(1e3 * (time.perf_counter() - began))
        facts[f"ms, cuDNN {'allowed' if allowed else 'off'}"] = statistics.median(taken[1:])
    return facts


def attention_ways(context: Context) -> Facts:
    """G1, G3. Milliseconds and the host's microseconds of forward and backward: without padding, and padded with a mask."""
    facts: Facts = {}
    for count, longest in ((4, 16),) if context.toy else ((512, 142), (64, 512)):
        lengths = np.sort(np.clip(60 * np.exp(0.4 * np.random.default_rng(0).standard_normal(count)), 4, longest).astype(np.int64))
        starts = torch.from_numpy(np.concatenate([[0], lengths.cumsum()])).to("cuda")
        layout = attention.PackedLayout(tuple(lengths.tolist()), starts)
        joint = torch.randn(int(lengths.sum()), 3, 4 if context.toy else 12, 64, device="cuda", dtype=HALF, requires_grad=True)
        for dropout in (RATE, 0.0):
            ways: dict[str, Callable[..., Tensor]] = {
                "moeir": lambda *parts, dropout=dropout, layout=layout: attention.attention(*parts, layout, dropout=dropout),
                "padded": lambda *parts, dropout=dropout, layout=layout: attention.padded_sdpa(
                    *parts, layout, layout.padded_mask(None, HALF), dropout
                ),
            }
            for name, way in ways.items():

                def run(way: Callable[..., Tensor] = way, joint: Tensor = joint) -> None:
                    joint.grad = None
                    way(*joint.unbind(1)).sum().backward()

                milliseconds, host = 1e3 * seconds_of(context, run), host_microseconds(run, 2 if context.toy else 30)
                facts[f"{count} texts to {longest}, dropout {dropout}, {name}"] = f"{milliseconds:.3f} ms, host {host:.0f} µs"
    return facts


def grouped_products(context: Context) -> Facts:
    """G4. The gradient of an expert that no row chose, in memory that was dirty before, and the distance from a loop."""
    experts, rows, width = 6, 64 if context.toy else 2000, 16 if context.toy else 768
    inputs = torch.randn(rows, width, device="cuda", requires_grad=True)
    weights = torch.randn(experts, width, width, device="cuda", requires_grad=True)
    choice = torch.arange(rows, device="cuda") % experts
    choice = torch.where(choice == 2, 1, choice)
    dirty = torch.full((experts, width, width), float("nan"), device="cuda", dtype=HALF)
    del dirty
    outputs = grouped_linear(inputs, weights, None, ExpertGroups.from_choice(choice, experts))
    outputs.float().square().sum().backward()
    assert weights.grad is not None
    reference = torch.einsum("nk,nok->no", inputs.detach().to(HALF).float(), weights.detach().to(HALF).float()[choice])
    distance = float((outputs.detach().float() - reference).norm() / reference.norm())
    unused = float(weights.grad[2].abs().max())
    context.require(unused == 0.0, f"an expert without rows has a gradient of {unused}")
    return {"relative error": distance, "largest gradient of an unused expert": unused}


def older_settings(context: Context) -> Facts:
    """G5. Products in full precision, and who reads the older setting, after set_float32_matmul_precision("high")."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        left = torch.randn(32 if context.toy else 2048, 32 if context.toy else 2048, device="cuda")
        with full_precision(left.device):
            inside, older = left @ left, torch.backends.cuda.matmul.allow_tf32
        exact = (left.double() @ left.double()).float()
        return {"relative error": float((inside - exact).norm() / exact.norm()), "allow_tf32 inside": str(older)}
    finally:
        torch.set_float32_matmul_precision(before)


def top_k(context: Context) -> Facts:
    """G7. A block of flat's scan: its product, the best of it in one stage and in two."""
    queries, documents, width, depth = (4, 4096, 16, 8) if context.toy else (1024, 65_536, 384, 264)
    left, right = (torch.randn(rows, width, device="cuda", dtype=HALF) for rows in (queries, documents))
    scores = left @ right.T
    one, two = scores.float().topk(depth, dim=1).values, select_best(scores, depth)[0].sort(dim=1, descending=True).values
    context.require(torch.equal(one, two), "two stages find other scores than one")
    works = {
        "product": lambda: left @ right.T,
        "one stage": lambda: scores.float().topk(depth, dim=1),
        "two stages": lambda: select_best(scores, depth),
    }
    return {f"ms, {name}": 1e3 * seconds_of(context, work) for name, work in works.items()}


def cross_entropy(context: Context) -> Facts:
    """G8. The fused cross-entropy, of which a third is its products at the peak."""
    rows, words, width = (16, 100, 8) if context.toy else (8192, 30_522, 768)
    states, table, bias = (torch.randn(*shape, device="cuda", requires_grad=True) for shape in ((rows, width), (words, width), (words,)))
    targets = torch.arange(rows, device="cuda") % words

    def run(reduce: Reduction) -> None:
        with torch.autocast("cuda", dtype=HALF):
            fused_linear_cross_entropy(states, table, bias, targets, reduce)[0].backward()

    reductions = {"plain": reduce_logits}
    if not context.pretend:  # the compiler does not know the pretended device
        reductions["compiled"] = torch.compile(reduce_logits, dynamic=True)
    seconds = {name: seconds_of(context, partial(run, reduce)) for name, reduce in reductions.items()}
    rates = {f"TFLOP/s, {name}": 6 * rows * words * width / taken / 1e12 for name, taken in seconds.items()}
    return {f"ms, {name}": 1e3 * taken for name, taken in seconds.items()} | rates


def joint_projection(context: Context) -> Facts:
    """G10. Forward and backward of a layer's query, key and value: weights stored one after the other, and apart, which copies them."""
    rows, width, heads = (16, 8, 2) if context.toy else (4320, 768, 12)
    apart = Attention(EncoderConfig(100, width, 1, heads, width))
    adjacent = copy.deepcopy(apart).to("cuda")
    apart.to("cuda")
    store_adjacent(adjacent)
    states = torch.randn(rows, width, device="cuda", requires_grad=True)

    def run(layer: Attention) -> Tensor:
        with torch.autocast("cuda", dtype=HALF):
            output = layer._project(states, layer.query, layer.key, layer.value)
        output.sum().backward()
        return output

    context.require(torch.equal(run(apart), run(adjacent)), "adjacent weights have another product than weights apart")
    works = {"apart": partial(run, apart), "adjacent": partial(run, adjacent)}
    return {f"ms, {name}": 1e3 * seconds_of(context, work) for name, work in works.items()}


def optimiser(context: Context) -> Facts:
    """AdamW, clipping and casts of BERT-base's parameters, which no batch size makes smaller."""
    count, size = (4, 100) if context.toy else (200, 550_000)
    parameters = [torch.nn.Parameter(torch.randn(size, device="cuda")) for _ in range(count)]
    for one in parameters:
        one.grad = torch.randn_like(one)
    adam = torch.optim.AdamW(parameters, lr=1e-5, fused=True)
    works = {
        "AdamW": adam.step,
        "clip": lambda: torch.nn.utils.clip_grad_norm_(parameters, 1.0),
        "casts": lambda: [one.to(HALF) for one in parameters],
    }
    return {f"ms, {name}": 1e3 * seconds_of(context, work) for name, work in works.items()}


def training_step(context: Context) -> Facts:
    """Step times of a dense training, its launches, and the places that wait for the device by torch's own warnings."""
    facts: Facts = {}
    for batch in (2,) if context.toy else (8, 64):
        plan = steps.make_plan(context, batch, 3 if context.toy else 30, 1 if context.toy else 10)
        with stages.StepTimes() as times:
            plan.train("dense", batch)
        facts[f"{batch} queries, ms a step"] = 1e3 * statistics.median(times.seconds(plan.warm))
        if not context.pretend:
            with profile(activities=[ProfilerActivity.CUDA]) as found:
                plan.train("dense", batch)
            rows = [one for one in found.key_averages() if one.device_type == torch.autograd.DeviceType.CUDA]
            facts[f"{batch} queries, launches a step"] = sum(one.count for one in rows) // plan.steps
            facts[f"{batch} queries, ms busy a step"] = sum(one.self_device_time_total for one in rows) / plan.steps / 1e3
    if not context.pretend:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                plan.train("dense", batch)
            finally:
                torch.cuda.set_sync_debug_mode("default")
        waits = [f"{Path(one.filename).name}:{one.lineno}" for one in caught if "synchroniz" in str(one.message)]
        facts |= {f"waits of {plan.steps} steps, {place}": waits.count(place) for place in sorted(set(waits))}
    return facts


PROBES = (
    *(ceilings, realised_dropout, new_shapes, attention_ways, grouped_products, older_settings),
    *(top_k, cross_entropy, joint_projection, optimiser, training_step),
)
