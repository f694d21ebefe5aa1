"""Pre-training as a task of the trainer, and its loss on held-out documents."""

import math
from typing import Any

import torch
from torch import Tensor

from moeir.analysis.training_monitor import BOTTLENECK_GAIN, LOSS_MEASURE
from moeir.architectures.base import StepMetrics
from moeir.backbones.device import autocast
from moeir.backbones.prefetch import StepPrefetcher
from moeir.distributed import SINGLE_PROCESS, ProcessGroup
from moeir.errors import UsageError
from moeir.pretraining.base import Pretraining
from moeir.pretraining.batches import PretrainingBatch, SpanSampler

HELD_OUT_SPANS = 2048  # that are measured at most
BOTTLENECK_EVERY = 50  # steps between measurements of what the bottleneck is worth


class PretrainingTask:
    """Trains an objective on the batches of a sampler, which are prefetched in consecutive steps.

    Several processes split each batch into equal parts. Every 50th step of `accumulate` batches and the last one measure the bottleneck.
    """

    def __init__(
        self,
        objective: Pretraining,
        sampler: SpanSampler,
        dtype: torch.dtype,
        process_group: ProcessGroup = SINGLE_PROCESS,
        *,
        accumulate: int = 1,
    ) -> None:
        self.model: Pretraining = objective
        self._sampler, self._dtype, self._process_group, self._accumulate = sampler, dtype, process_group, accumulate
        objective.process_group = process_group
        _check_batches(sampler, process_group, "--batch-size")

        def make_batch(step: int) -> PretrainingBatch:
            batch = sampler.batch_at(step, process_group.rank, process_group.size)
            return batch.pin_memory() if next(objective.parameters()).is_cuda else batch

        self._batches = StepPrefetcher(make_batch, sampler.steps)

    @property
    def size(self) -> int:
        """Number of anchors in an epoch."""
        return self._sampler.anchor_count

    def compute_loss(self, step: int) -> tuple[Tensor, StepMetrics, int]:
        """Loss and metrics of a batch, counted from 0, and its number of tokens."""
        device = next(self.model.parameters()).device
        batch = self._batches.at(step).to(device)
        tokens = sum(len(part.original_ids) for part in (batch.anchors, batch.contexts) if part is not None)
        loss, facts = self.compute(batch, device)
        tokens_by_process = self._process_group.all_gather([torch.tensor([tokens])], "the tokens of a step")
        return loss, facts, sum(int(part) for (part,) in tokens_by_process)

    def compute(
        self, batch: PretrainingBatch, device: torch.device, *, measures_bottleneck: bool | None = None
    ) -> tuple[Tensor, StepMetrics]:
        """Loss and metrics of a batch on a device."""
        number = batch.step // self._accumulate + 1  # of the optimizer's step, counted from 1
        is_measured = number % BOTTLENECK_EVERY == 0 or number == batch.steps // self._accumulate
        self.model.measures_bottleneck = is_measured if measures_bottleneck is None else measures_bottleneck
        with autocast(self._dtype, str(device)):
            loss, facts = self.model(batch)
        return loss, facts


class HeldOutLoss:
    """Loss of a task's objective on the batches of another sampler, as an evaluator of the trainer; the same texts and masks each time."""

    patience: int | None = None
    keeps_best: bool = False

    def __init__(self, task: PretrainingTask, sampler: SpanSampler, every: int) -> None:
        _check_batches(sampler, task.model.process_group, "--held-out")
        self.every, self._task, self._sampler = every, task, sampler
        self._batches = min(sampler.steps_per_epoch, math.ceil(HELD_OUT_SPANS / sampler.batch_size))

    @torch.no_grad()
    def evaluate(self, step: int, best: Any) -> dict[str, float]:
        """Means over the batches without dropout: `dev.loss`, `dev.PART.loss`, and `dev.bottleneck_gain` of decoders."""
        model = self._task.model.eval()
        process_group, device = model.process_group, next(model.parameters()).device
        batches = (self._sampler.batch_at(number, process_group.rank, process_group.size) for number in range(self._batches))
        parts = [self._task.compute(batch.to(device), device, measures_bottleneck=True)[1] for batch in batches]
        means = {name: sum(float(part[name]) for part in parts) / len(parts) for name in parts[0]}
        losses = {f"dev.{name.removeprefix('loss.')}.loss": value for name, value in means.items() if name.startswith("loss.")}
        gain = {f"dev.{BOTTLENECK_GAIN}": means[BOTTLENECK_GAIN]} if BOTTLENECK_GAIN in means else {}
        best.update(step, means["loss"], lower_is_better=True)
        return {"dev.loss": means["loss"]} | losses | gain

    def manifest_entry(self) -> dict[str, Any]:
        """How many spans are measured."""
        return {"measure": LOSS_MEASURE, "spans": self._batches * self._sampler.batch_size}


def _check_batches(sampler: SpanSampler, process_group: ProcessGroup, flag: str) -> None:
    if sampler.batch_size < process_group.size:
        raise UsageError(f"{flag}: {sampler.batch_size} spans in a batch are too few for {process_group.size} processes")
