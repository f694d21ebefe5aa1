"""Pre-training as a task of the training loop, and how near it comes to what the machine can multiply."""

import time
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from moeir.backbones.precision import autocast
from moeir.pretraining.base import Pretraining
from moeir.pretraining.batches import Batch, Plan, ahead

SIDE, ROUNDS = 2048, 5  # of the product that is measured


class Task:
    """An objective learns from the batches of a plan, which are made a few steps ahead; the loop asks for them one after another."""

    def __init__(self, objective: Pretraining, plan: Plan, dtype: torch.dtype) -> None:
        self.model: nn.Module = objective
        self._plan, self._dtype = plan, dtype
        self._batches: Iterator[Batch] = iter(())
        self._next = -1
        self._products = self._products_tokens = self._tokens = 0
        self._began: float | None = None

    @property
    def size(self) -> int:
        """Spans."""
        return self._plan.spans

    def outcome(self, step: int) -> tuple[Tensor, dict[str, float], int]:
        """The objective on the batch of a step, and how many tokens were read."""
        if step != self._next:
            self._batches = ahead(self._plan, step, self._plan.steps)
        self._next = step + 1
        device = next(self.model.parameters()).device
        batch = next(self._batches).to(device)
        tokens = sum(len(part.plain) for part in (batch.anchors, batch.contexts) if part is not None)
        if not self._products:
            with FlopCounterMode(display=False) as counter:
                loss, facts = self._cost(batch, device)
                learning = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
                torch.autograd.grad(loss, learning, retain_graph=True, allow_unused=True)  # counted only: the loop steps on its own
            self._products, self._products_tokens = counter.get_total_flops(), tokens
            return loss, facts, tokens
        self._began = time.monotonic() if self._began is None else self._began
        self._tokens += tokens
        return *self._cost(batch, device), tokens

    def _cost(self, batch: Batch, device: torch.device) -> tuple[Tensor, dict[str, float]]:
        with autocast(self._dtype, str(device)):
            loss, facts = self.model(batch)
        return loss, facts

    def speed(self) -> dict[str, float]:
        """Tokens a second over the steps after the first, the operations of matrix products they took, and which share of the machine's
        largest measured rate that is; nothing for a single step. The products of the first step, forward and backward as torch counts
        them, stand for those of the others, token by token."""
        if self._began is None or not self._tokens:
            return {}
        per_second = self._tokens / (time.monotonic() - self._began)
        rate = self._products / self._products_tokens * per_second
        peak = measured_peak(self._dtype, next(self.model.parameters()).device)
        return {"tokens_per_second": per_second, "flops_per_second": rate, "measured_peak": peak, "share_of_peak": rate / peak}


@torch.no_grad()
def measured_peak(dtype: torch.dtype, device: torch.device) -> float:
    """Multiplications and additions a second of a large matrix product on this machine, the best of five."""
    first, second = (torch.randn(SIDE, SIDE, device=device, dtype=dtype) for _ in range(2))
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.perf_counter()
        product = first @ second
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - began)
    assert product.shape == (SIDE, SIDE)
    return 2 * SIDE**3 / best
