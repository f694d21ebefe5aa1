"""Pre-training as a task of the trainer."""

import torch
from torch import Tensor

from moeir.architectures.base import StepMetrics
from moeir.backbones.device import autocast
from moeir.backbones.prefetch import StepPrefetcher
from moeir.distributed import SINGLE_PROCESS, ProcessGroup
from moeir.errors import UsageError
from moeir.pretraining.base import Pretraining
from moeir.pretraining.batches import PretrainingBatch, SpanSampler

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
        if sampler.batch_size < process_group.size:
            raise UsageError(f"--batch-size: {sampler.batch_size} spans in a batch are too few for {process_group.size} processes")

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
        number = step // self._accumulate + 1  # of the optimizer's step, counted from 1
        self.model.measures_bottleneck = number % BOTTLENECK_EVERY == 0 or number == batch.steps // self._accumulate
        with autocast(self._dtype, str(device)):
            loss, facts = self.model(batch)
        tokens_by_process = self._process_group.all_gather([torch.tensor([tokens])], "the tokens of a step")
        return loss, facts, sum(int(part) for (part,) in tokens_by_process)
