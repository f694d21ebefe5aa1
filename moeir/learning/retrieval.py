"""Retrieval as a task of the training loop: queries and documents of a plan, encoded, what an objective makes of them, and who judges."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from moeir.architectures.checkpoint import OpenCheckpoint
from moeir.backbones.precision import autocast
from moeir.learning import checkpoints
from moeir.learning.batches import Steps
from moeir.learning.objectives import Batch, Outcome
from moeir.learning.tokens import Batches, TokenTexts
from moeir.learning.validation import Best, Development, evaluated

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Retrieval:
    """A checkpoint learns `objective` from the batches of `plan`, of `steps` in all; `texts` are the tokens of what it draws from."""

    checkpoint: OpenCheckpoint
    plan: Steps
    texts: TokenTexts
    objective: Callable[[Batch], Outcome]
    steps: int
    dtype: torch.dtype

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
        return Batches(self.plan, self.texts, self.steps, pinned=self.checkpoint.device.type == "cuda")

    def outcome(self, step: int) -> tuple[Tensor, dict[str, float], int]:
        """The objective on the batch of a step, and how many tokens that was."""
        device = self.checkpoint.device
        drawn, *sides = self.batches.at(step)
        queries, documents = (side.to(device) for side in sides)
        with autocast(self.dtype, str(device)):
            encoded = self.checkpoint.architecture(queries), self.checkpoint.architecture(documents)
        teacher = None if (said := drawn.teacher()) is None else said.to(device)
        made = self.objective(Batch(*encoded, drawn.ignored().to(device), step, self.steps, teacher))
        return made.loss, made.facts, len(queries.ids) + len(documents.ids)


@dataclass(frozen=True)
class Judge:
    """What the development queries say of a checkpoint's weights while it is trained."""

    checkpoint: OpenCheckpoint
    development: Development
    dtype: torch.dtype

    def judged(self, step: int, steps: int, best: Best, kept: Path) -> dict[str, float]:
        """The measures after `step` of `steps` steps, where it is time to ask; the best weights are put into `kept`."""
        given = self.development
        if not given.due(step, steps):
            return {}
        facts = evaluated(self.checkpoint, given, self.dtype)
        value, *others = facts.values()
        if best.better(step, value) and given.keep == "best":
            checkpoints.keep(kept, self.checkpoint.architecture, step)
        names = [key.removeprefix("dev.").removesuffix(f".{given.measure}") for key in list(facts)[1:]]
        experts = ", ".join(f"{name} {other:.4f}" for name, other in zip(names, others, strict=True))
        words = f" ({experts})" if experts else ""
        log.info("step %d: development %s %.4f%s; best %.4f after step %d", step, given.measure, value, words, best.value, best.step)
        return facts
