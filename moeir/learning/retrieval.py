"""Retrieval as a training task: the texts of a sampler's batches, encoded, their objective, and evaluation on a development set."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from moeir.architectures.base import Encoded
from moeir.architectures.checkpoint import OpenCheckpoint
from moeir.backbones.precision import autocast
from moeir.backbones.tokens import Tokens
from moeir.learning import caching, checkpoints
from moeir.learning.batches import Steps
from moeir.learning.distributed import ALONE, World
from moeir.learning.scoring import Batch, Facts, Outcome
from moeir.learning.tokens import Batches, Dealt, PairTexts, Share, TokenTexts
from moeir.learning.validation import Best, Development, evaluated
from moeir.representations.dense import Dense

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Retrieval:
    """Trains a checkpoint with `objective` on the batches of `sampler`, in `steps` steps of `accumulate` batches each.

    `texts` are the tokens of the sampled texts. The processes share the texts of every batch, and each gets all representations; each keeps
    the activations of at most `max_tokens` tokens at a time (None: all), see `grad_cache`. With a cross-encoder a pair's representation is
    a vector of one number, its score: every query is represented by the number 1, and the pairs of other queries are ignored.
    """

    checkpoint: OpenCheckpoint
    plan: Steps
    texts: TokenTexts | PairTexts
    objective: Callable[[Batch], Outcome]
    steps: int
    dtype: torch.dtype
    world: World = ALONE
    accumulate: int = 1
    at_once: int | None = None

    @property
    def model(self) -> nn.Module:
        """The architecture."""
        return self.checkpoint.architecture

    @property
    def size(self) -> int:
        """Training examples."""
        return self.plan.size

    @cached_property
    def batches(self) -> Batches:
        """The tokenized batches, prefetched."""
        share = Share(self.world.rank, self.world.size, self.at_once)
        return Batches(self.plan, self.texts, self.steps * self.accumulate, share, pinned=self.checkpoint.device.type == "cuda")

    def outcome(self, batch: int) -> tuple[Tensor, Facts, int]:
        """The objective's loss and metrics of a batch, counted from 0, and its number of tokens."""
        device, step = self.checkpoint.device, batch // self.accumulate
        tokenized = self.batches.at(batch)
        ignored = tokenized.ignored.to(device, non_blocking=True)
        teacher = None if tokenized.teacher is None else tokenized.teacher.to(device, non_blocking=True)
        if self.checkpoint.architecture.pairs:
            scores = self._encoded(tokenized.documents, f"pairs of step {step + 1}")
            unit_queries = Encoded({name: Dense(torch.ones(len(ignored), 1, device=device)) for name in scores.representations})
            output = self.objective(Batch(unit_queries, scores, ignored, step, self.steps, teacher))
        else:
            sides = (("queries", tokenized.queries), ("documents", tokenized.documents))
            encoded = [self._encoded(texts, f"{side} of step {step + 1}") for side, texts in sides]
            output = self.objective(Batch(*encoded, ignored, step, self.steps, teacher))
        return output.loss, output.facts, tokenized.queries.count + tokenized.documents.count

    def _encoded(self, texts: Dealt, moment: str) -> Encoded:
        """Representations of the texts of a side, from all processes, in the order of the batch."""
        device = self.checkpoint.device

        def encode(tokens: Tokens) -> Encoded:
            with autocast(self.dtype, str(device)):
                return self.checkpoint.architecture(tokens.to(device))

        own = caching.encoded(encode, texts.parts)
        if texts.back is None:
            return own
        return self.world.gathered(own, moment).select(texts.back.to(device, non_blocking=True), permutation=True)


@dataclass(frozen=True)
class Judge:
    """Evaluates a checkpoint on a development set while it is trained."""

    checkpoint: OpenCheckpoint
    development: Development
    dtype: torch.dtype
    world: World = ALONE

    def judged(self, step: int, steps: int, best: Best, best_folder: Path) -> dict[str, float]:
        """The measures after `step` of `steps` steps, empty if no evaluation is due; saves the best weights in `best_folder`."""
        dev_set = self.development
        if not dev_set.due(step, steps):
            return {}
        facts = evaluated(self.checkpoint, dev_set, self.dtype, self.world)
        value, *others = facts.values()
        if best.better(step, value) and dev_set.keep == "best" and self.world.main:
            checkpoints.keep(best_folder, self.checkpoint.architecture, step)
        names = [key.removeprefix("dev.").removesuffix(f".{dev_set.measure}") for key in list(facts)[1:]]
        experts = ", ".join(f"{name} {other:.4f}" for name, other in zip(names, others, strict=True))
        expert_values = f" ({experts})" if experts else ""
        log.info(
            "step %d: development %s %.4f%s; best %.4f after step %d", step, dev_set.measure, value, expert_values, best.value, best.step
        )
        return facts
