"""The training loop: one step at a time, every random choice a function of (seed, step), saved so that a kill costs minutes."""

import json
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from moeir import console
from moeir.architectures.checkpoint import OpenCheckpoint
from moeir.artifacts.making import RESUME
from moeir.backbones.precision import autocast
from moeir.errors import MoeirError, UsageError
from moeir.learning import checkpoints
from moeir.learning.batches import Plan
from moeir.learning.objectives import Batch, Outcome

METRICS = "metrics.jsonl"
LOWER = "start over with a lower --learning-rate and --force; the last saved state is kept until then"
STATE = "state"  # within resume/, so that what a kill leaves of a half-made save goes with it
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Schedule:
    """How long and how fast: AdamW, linear warm-up over a ratio of the steps, linear decay to zero, clipped gradient norm."""

    steps: int
    learning_rate: float
    warmup: float = 0.1
    weight_decay: float = 0.0
    clip: float = 1.0
    seed: int = 42
    save_minutes: float = 5.0

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 0.

        >>> schedule = Schedule(steps=10, learning_rate=1.0, warmup=0.2)
        >>> [round(schedule.rate(step), 3) for step in (0, 1, 2, 9)]
        [0.5, 1.0, 1.0, 0.125]
        """
        rising = max(1, round(self.warmup * self.steps)) if self.warmup else 0
        if step < rising:
            return self.learning_rate * (step + 1) / rising
        return self.learning_rate * (self.steps - step) / max(1, self.steps - rising)


@dataclass
class Texts:
    """The texts a plan draws from, by id."""

    queries: Mapping[str, str]
    documents: Mapping[str, str]


def train(
    checkpoint: OpenCheckpoint,
    plan: Plan,
    texts: Texts,
    objective: Callable[[Batch], Outcome],
    schedule: Schedule,
    folder: Path,
    *,
    dtype: torch.dtype,
    device: str,
) -> dict[str, Any]:
    """Train in place; `folder` gets `metrics.jsonl` and, while training, `resume/`. Returns what the manifest keeps."""
    accelerator = Accelerator(cpu=device == "cpu")
    if accelerator.num_processes > 1:
        raise UsageError(f"finetune runs as one process for now, found {accelerator.num_processes}; start it without torchrun")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    model = checkpoint.architecture.to(device)
    optimiser = torch.optim.AdamW(_groups(model, schedule.weight_decay), lr=schedule.learning_rate, eps=1e-8, fused=True)
    standing = checkpoints.load(folder / RESUME / STATE, model, optimiser)
    if standing.step:
        log.info("continuing after step %d of %d", standing.step, schedule.steps)
    run = _Run(checkpoint, plan, texts, objective, schedule, optimiser, accelerator, dtype)
    facts: dict[str, float] = {}
    model.train()
    with open(folder / METRICS, "ab") as metrics, console.meter("training", schedule.steps) as meter:
        metrics.truncate(standing.metrics_bytes)
        meter.advance(standing.step)
        saved = time.monotonic()
        for step in range(standing.step, schedule.steps):
            facts = run.step(step)
            metrics.write((json.dumps(facts) + "\n").encode())
            meter.advance(1, _shown(facts))
            if (time.monotonic() - saved) / 60 >= schedule.save_minutes and step + 1 < schedule.steps:
                metrics.flush()
                checkpoints.save(folder / RESUME / STATE, model, optimiser, checkpoints.Standing(step + 1, metrics.tell()))
                saved = time.monotonic()
    model.eval()
    return {"steps": schedule.steps, "examples": len(plan.examples), "last": {key: facts[key] for key in facts if key != "seconds"}}


def _groups(model: torch.nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Biases and normalisations are not decayed."""
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    plain = [parameter for name, parameter in named if parameter.ndim < 2]
    return [{"params": [p for _, p in named if p.ndim >= 2], "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0}]


@dataclass
class _Run:
    """What stays the same from step to step."""

    checkpoint: OpenCheckpoint
    plan: Plan
    texts: Texts
    objective: Callable[[Batch], Outcome]
    schedule: Schedule
    optimiser: torch.optim.Optimizer
    accelerator: Accelerator
    dtype: torch.dtype

    def step(self, step: int) -> dict[str, float]:
        """One update, counted from 0; what happened."""
        began, rate = time.monotonic(), self.schedule.rate(step)
        outcome, tokens = self._outcome(step)
        if not math.isfinite(outcome.facts["loss"]):
            raise MoeirError(f"step {step + 1}: the loss is {outcome.facts['loss']}; {LOWER}")
        self.accelerator.backward(outcome.loss)
        norm = float(self.accelerator.clip_grad_norm_(self.checkpoint.architecture.parameters(), self.schedule.clip or math.inf))
        if not math.isfinite(norm):
            raise MoeirError(f"step {step + 1}: the gradient norm is {norm}; {LOWER}")
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        seconds = time.monotonic() - began
        facts = {"step": step + 1, **outcome.facts, "gradient_norm": norm, "learning_rate": rate, "tokens": tokens}
        return facts | {"tokens_per_second": tokens / seconds, "seconds": seconds}

    def _outcome(self, step: int) -> tuple[Outcome, int]:
        """The objective on the batch of a step, and how many tokens that was."""
        drawn, device = self.plan.at(step), self.checkpoint.device
        torch.manual_seed(self.schedule.seed * 1_000_003 + step)
        queries = self.checkpoint.read([self.texts.queries[one] for one in drawn.queries], "query")
        documents = self.checkpoint.read([self.texts.documents[one] for one in drawn.documents], "document")
        with autocast(self.dtype, str(device)):
            encoded = self.checkpoint.architecture(queries), self.checkpoint.architecture(documents)
        outcome = self.objective(Batch(*encoded, drawn.ignored().to(device), step, self.schedule.steps))
        return outcome, len(queries.ids) + len(documents.ids)


def _shown(facts: Mapping[str, float]) -> str:
    """A few words of a step for people: the loss, and who is winning."""
    shares = " ".join(f"{key.removeprefix('share.')} {facts[key]:.2f}" for key in facts if key.startswith("share."))
    return f"loss {facts['loss']:.3f}" + (f", shares {shares}" if shares else "")
