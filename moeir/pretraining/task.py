"""Pre-training as a task of the trainer, with its speed in FLOP/s relative to the measured peak of the machine."""

import time
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from moeir.backbones.precision import autocast
from moeir.errors import UsageError
from moeir.kernels.attention import varlen_flops
from moeir.kernels.grouped_linear import grouped_flops
from moeir.pretraining.base import Facts, Others, Pretraining
from moeir.pretraining.batches import Batch, Plan, ahead

SIDE, ROUNDS = {"cpu": 2048, "cuda": 8192}, 5  # of the matrix product that is measured


class Task:
    """Trains an objective on the batches of a sampler, which are prefetched in consecutive steps.

    Several processes split each batch into equal parts.
    """

    def __init__(self, objective: Pretraining, plan: Plan, dtype: torch.dtype, others: Others | None = None) -> None:
        self.model: nn.Module = objective
        self._plan, self._dtype, self._others = plan, dtype, others
        objective.others = others
        if others is not None and plan.size < others.size:
            raise UsageError(f"--batch-size: {plan.size} spans in a batch are too few for {others.size} processes")
        self._batches: Iterator[Batch] = iter(())
        self._next = -1
        self._products = self._products_tokens = self._tokens = 0
        self._began: float | None = None

    @property
    def size(self) -> int:
        """Number of spans that are anchors."""
        return self._plan.spans

    def outcome(self, step: int) -> tuple[Tensor, Facts, int]:
        """Loss and metrics of a batch, counted from 0, and its number of tokens."""
        if step != self._next:
            rank, ranks = (0, 1) if self._others is None else (self._others.rank, self._others.size)
            pinned = next(self.model.parameters()).is_cuda
            self._batches = ahead(self._plan, step, self._plan.steps, rank=rank, ranks=ranks, pinned=pinned)
        self._next = step + 1
        device = next(self.model.parameters()).device
        batch = next(self._batches).to(device)
        tokens = sum(len(part.plain) for part in (batch.anchors, batch.contexts) if part is not None)
        return *self._counted(batch, device, tokens), self._everywhere(tokens)

    def _everywhere(self, tokens: int) -> int:
        return tokens if self._others is None else sum(self._others.said(tokens, "the tokens of a step"))

    def _counted(self, batch: Batch, device: torch.device, tokens: int) -> tuple[Tensor, Facts]:
        if not self._products:
            formulas = {**varlen_flops(), **grouped_flops()} if device.type == "cuda" else {}
            with FlopCounterMode(display=False, custom_mapping=formulas) as counter:
                loss, facts = self._cost(batch, device)
                parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
                torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)  # for counting only
            self._products, self._products_tokens = counter.get_total_flops(), tokens
            return loss, facts
        if self._began is None:
            _finish(device)
            self._began = time.monotonic()
        self._tokens += tokens
        return self._cost(batch, device)

    def _cost(self, batch: Batch, device: torch.device) -> tuple[Tensor, Facts]:
        with autocast(self._dtype, str(device)):
            loss, facts = self.model(batch)
        return loss, facts

    def speed(self) -> dict[str, float]:
        """Tokens per second after the first step, FLOP/s of matrix products, and their share of the machine's measured peak; empty for a
        single step. FLOPs per token are those of the first step, forward and backward as counted by torch. With several processes the
        numbers are those of this one."""
        if self._began is None or not self._tokens:
            return {}
        device = next(self.model.parameters()).device
        _finish(device)
        per_second = self._tokens / (time.monotonic() - self._began)
        rate = self._products / self._products_tokens * per_second
        peak = measured_peak(self._dtype, device)
        return {"tokens_per_second": per_second, "flops_per_second": rate, "measured_peak": peak, "share_of_peak": rate / peak}


@torch.no_grad()
def measured_peak(dtype: torch.dtype, device: torch.device) -> float:
    """FLOP/s of a large matrix product on a device, the best of five.

    On CUDA the matrices are 8,192 wide: smaller ones leave much of a device idle and would understate the peak. On a CPU 2,048 use every
    core, and 8,192 could take minutes.
    """
    side = SIDE[device.type]
    first, second = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    fastest = float("inf")
    for _ in range(ROUNDS):
        _finish(device)
        started = time.perf_counter()
        product = first @ second
        _finish(device)
        fastest = min(fastest, time.perf_counter() - started)
    assert product.shape == (side, side)
    return 2 * side**3 / fastest


def _finish(device: torch.device) -> None:
    """Wait for pending work of a CUDA device, so that timings include it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
