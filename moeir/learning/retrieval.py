"""Retrieval as a task of the training loop: queries and documents of a plan, encoded, what an objective makes of them, and who judges."""

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
    """A checkpoint learns `objective` from the batches of `plan`, in `steps` steps of `accumulate` batches each.

    `texts` are the tokens of what it draws from. The processes of `world` share the texts of every batch and know all representations;
    each encodes at most `at_once` tokens at a time with their activations (None: all), see `caching`. Of a cross-encoder a pair's score is
    the pair's representation: a vector of one number, of which the inner product with the number 1, which stands for every query, is the
    score; the pairs of other queries are ignored.
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
        """What the steps read, made ahead of them."""
        share = Share(self.world.rank, self.world.size, self.at_once)
        return Batches(self.plan, self.texts, self.steps * self.accumulate, share, pinned=self.checkpoint.device.type == "cuda")

    def outcome(self, batch: int) -> tuple[Tensor, Facts, int]:
        """The objective on a batch, counted from 0, and how many tokens that was."""
        device, step = self.checkpoint.device, batch // self.accumulate
        read = self.batches.at(batch)
        ignored = read.ignored.to(device, non_blocking=True)
        teacher = None if read.teacher is None else read.teacher.to(device, non_blocking=True)
        if self.checkpoint.architecture.pairs:
            scores = self._encoded(read.documents, f"pairs of step {step + 1}")
            asked = Encoded({name: Dense(torch.ones(len(ignored), 1, device=device)) for name in scores.representations})
            made = self.objective(Batch(asked, scores, ignored, step, self.steps, teacher))
        else:
            sides = (("queries", read.queries), ("documents", read.documents))
            encoded = [self._encoded(texts, f"{side} of step {step + 1}") for side, texts in sides]
            made = self.objective(Batch(*encoded, ignored, step, self.steps, teacher))
        return made.loss, made.facts, read.queries.count + read.documents.count

    def _encoded(self, texts: Dealt, moment: str) -> Encoded:
        """The texts of a side, those of all processes, in the order of the batch."""
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
    """What the development queries say of a checkpoint's weights while it is trained."""

    checkpoint: OpenCheckpoint
    development: Development
    dtype: torch.dtype
    world: World = ALONE

    def judged(self, step: int, steps: int, best: Best, kept: Path) -> dict[str, float]:
        """The measures after `step` of `steps` steps, where it is time to ask; the best weights are put into `kept`."""
        given = self.development
        if not given.due(step, steps):
            return {}
        facts = evaluated(self.checkpoint, given, self.dtype, self.world)
        value, *others = facts.values()
        if best.better(step, value) and given.keep == "best" and self.world.main:
            checkpoints.keep(kept, self.checkpoint.architecture, step)
        names = [key.removeprefix("dev.").removesuffix(f".{given.measure}") for key in list(facts)[1:]]
        experts = ", ".join(f"{name} {other:.4f}" for name, other in zip(names, others, strict=True))
        words = f" ({experts})" if experts else ""
        log.info("step %d: development %s %.4f%s; best %.4f after step %d", step, given.measure, value, words, best.value, best.step)
        return facts
