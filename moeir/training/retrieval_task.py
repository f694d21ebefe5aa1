"""Retrieval as a training task: the texts of a sampler's batches, encoded and their objective."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from moeir.architectures.base import EncoderOutput, StepMetrics
from moeir.architectures.checkpoint import RetrievalModel
from moeir.backbones.device import autocast
from moeir.backbones.packed_tokens import PackedTokens
from moeir.backbones.prefetch import StepPrefetcher
from moeir.distributed import SINGLE_PROCESS, ProcessGroup
from moeir.errors import UsageError
from moeir.representations.dense import Dense
from moeir.training import grad_cache
from moeir.training.competition import LearningSpeed
from moeir.training.losses import EncodedBatch, ObjectiveOutput
from moeir.training.objectives import all_gather_encoded
from moeir.training.sampling import BatchSampler
from moeir.training.token_cache import ShardedTexts, ShardSpec, TokenizedBatch, TrainingTexts, prefetch_batches


@dataclass(frozen=True)
class RetrievalTask:
    """Trains a checkpoint with `objective` on the batches of `sampler`, in `steps` steps of `accumulate` batches each.

    `texts` are the tokens of the sampled texts. The processes share the texts of every batch, and each gets all representations; each keeps
    the activations of at most `max_tokens` tokens at a time (None: all), see `grad_cache`. With a cross-encoder a pair is
    represented by a vector of one number, its score, and every query by the vector [1]; pairs of other queries are ignored.
    """

    checkpoint: RetrievalModel
    sampler: BatchSampler
    texts: TrainingTexts
    objective: Callable[[EncodedBatch], ObjectiveOutput]
    steps: int
    dtype: torch.dtype
    process_group: ProcessGroup = SINGLE_PROCESS
    accumulate: int = 1
    max_tokens: int | None = None
    speed: LearningSpeed | None = None

    @property
    def model(self) -> nn.Module:
        """The architecture."""
        return self.checkpoint.architecture

    @property
    def size(self) -> int:
        """Training examples."""
        return self.sampler.size

    @cached_property
    def batches(self) -> StepPrefetcher[TokenizedBatch]:
        """The tokenized batches, prefetched."""
        share = ShardSpec(self.process_group.rank, self.process_group.size, self.max_tokens)
        pin_memory = self.checkpoint.device.type == "cuda"
        return prefetch_batches(self.sampler, self.texts, self.steps * self.accumulate, share, pin_memory=pin_memory)

    def compute_loss(self, batch: int) -> tuple[Tensor, StepMetrics, int]:
        """The objective's loss and metrics of a batch, counted from 0, and its number of tokens."""
        device, step = self.checkpoint.device, batch // self.accumulate
        tokenized = self.batches.at(batch)
        ignored = tokenized.ignore_mask.to(device, non_blocking=True)
        teacher = None if tokenized.teacher_scores is None else tokenized.teacher_scores.to(device, non_blocking=True)
        if self.checkpoint.architecture.reads_pairs:
            scores = self._encode_side(tokenized.documents, f"pairs of step {step + 1}")
            unit_queries = EncoderOutput({name: Dense(torch.ones(len(ignored), 1, device=device)) for name in scores.representations})
            output = self.objective(EncodedBatch(unit_queries, scores, ignored, step, self.steps, teacher))
        else:
            # weights are cast once for both sides; not with gradient caching, whose first pass casts them without a gradient
            with autocast(self.dtype, str(device)) if self.max_tokens is None else nullcontext():
                queries = self._encode_side(tokenized.queries, f"queries of step {step + 1}")
                documents = self._encode_side(tokenized.documents, f"documents of step {step + 1}")
            kinds = None if tokenized.kinds is None else tokenized.kinds.to(device, non_blocking=True)
            output = self.objective(EncodedBatch(queries, documents, ignored, step, self.steps, teacher, kinds=kinds, speed=self.speed))
        _check_output(output)
        return output.loss, output.metrics, tokenized.queries.total_tokens + tokenized.documents.total_tokens

    def _encode_side(self, texts: ShardedTexts, moment: str) -> EncoderOutput:
        """Representations of the texts of a side, from all processes, in the order of the batch."""
        device = self.checkpoint.device
        if len(texts.parts) > 1:

            def encode(tokens: PackedTokens) -> EncoderOutput:
                with autocast(self.dtype, str(device)):
                    return self.checkpoint.architecture(tokens.to(device))

            own = grad_cache.encode_with_grad_cache(encode, texts.parts, self.model)
        else:
            with autocast(self.dtype, str(device)):
                own = self.checkpoint.architecture(texts.parts[0].to(device))
        if texts.restore_order is None:
            return own
        encoded = all_gather_encoded(own, self.process_group, moment)
        return encoded.select(texts.restore_order.to(device, non_blocking=True), permutation=True)


def _check_output(output: Any) -> None:
    """UsageError if an objective, which may be own code, returns something else than a loss with a gradient and its metrics."""
    loss = output.loss if isinstance(output, ObjectiveOutput) else None
    if not isinstance(loss, Tensor) or loss.ndim or not loss.requires_grad or "loss" not in output.metrics:
        gradient = "with" if isinstance(loss, Tensor) and loss.requires_grad else "without"
        found = f"a loss of shape {list(loss.shape)} {gradient} a gradient" if isinstance(loss, Tensor) else type(output).__name__
        expected = "expected an ObjectiveOutput: a loss of one number that has a gradient, and metrics with 'loss'"
        raise UsageError(f"--objective returned {found}; {expected}")
