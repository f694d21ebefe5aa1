"""The training loop: one step at a time, every random choice a function of (seed, step), saved so that a kill costs minutes."""

import json
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from moeir import console
from moeir.architectures.checkpoint import OpenCheckpoint
from moeir.artifacts.making import RESUME
from moeir.backbones.precision import autocast
from moeir.errors import MoeirError, UsageError
from moeir.learning import checkpoints, parameters
from moeir.learning.batches import Steps
from moeir.learning.objectives import Batch, Outcome
from moeir.learning.texts import Texts
from moeir.learning.validation import Best, Development, evaluated

METRICS = "metrics.jsonl"
LOWER = "start over with a lower --learning-rate and --force; the last saved state is kept until then"
STATE, BEST = "state", "best"  # within resume/, so that what a kill leaves of a half-made save goes with it
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Schedule:
    """How long and how fast: AdamW, linear warm-up over a ratio of the steps, then `linear` decay to zero or a `constant` rate.

    `layer_decay` and `rates` are those of `parameters.groups`; gradients are clipped by their norm.
    """

    steps: int
    learning_rate: float
    warmup: float = 0.1
    weight_decay: float = 0.0
    clip: float = 1.0
    seed: int = 42
    save_minutes: float = 5.0
    shape: str = "linear"
    layer_decay: float = 1.0
    rates: Mapping[str, float] = field(default_factory=dict)

    def rate(self, step: int, peak: float | None = None) -> float:
        """The learning rate of a step, counted from 0, where the highest is `peak`.

        >>> schedule = Schedule(steps=10, learning_rate=1.0, warmup=0.2)
        >>> [round(schedule.rate(step), 3) for step in (0, 1, 2, 9)]
        [0.5, 1.0, 1.0, 0.125]
        """
        peak = self.learning_rate if peak is None else peak
        rising = max(1, round(self.warmup * self.steps)) if self.warmup else 0
        if step < rising:
            return peak * (step + 1) / rising
        return peak if self.shape == "constant" else peak * (self.steps - step) / max(1, self.steps - rising)


def train(
    checkpoint: OpenCheckpoint,
    plan: Steps,
    texts: Sequence[Texts],
    objective: Callable[[Batch], Outcome],
    schedule: Schedule,
    folder: Path,
    *,
    dtype: torch.dtype,
    device: str,
    development: Development | None = None,
) -> dict[str, Any]:
    """Train in place; `folder` gets `metrics.jsonl` and, while training, `resume/`. Returns what the manifest keeps.

    `texts` are those of each set that the plan draws from; `development`, if any, judges the weights now and then.
    """
    accelerator = Accelerator(cpu=device == "cpu")
    if accelerator.num_processes > 1:
        raise UsageError(f"finetune runs as one process for now, found {accelerator.num_processes}; start it without torchrun")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    model = checkpoint.architecture.to(device)
    options = {"weight_decay": schedule.weight_decay, "layer_decay": schedule.layer_decay, "rates": schedule.rates}
    grouped = parameters.groups(model, rate=schedule.learning_rate, **options)
    optimiser = torch.optim.AdamW(grouped, lr=schedule.learning_rate, eps=1e-8, fused=True)
    standing = checkpoints.load(folder / RESUME / STATE, model, optimiser)
    if standing.step:
        log.info("continuing after step %d of %d", standing.step, schedule.steps)
    run = _Run(checkpoint, plan, texts, objective, schedule, optimiser, accelerator, dtype, development, folder / RESUME)
    model.train()
    done = _walk(run, standing, folder)
    model.eval()
    told = {"steps": done["step"], "examples": plan.size, "last": {key: done[key] for key in done if key != "seconds"}}
    if development is None:
        return told
    if development.keep == "best":
        checkpoints.bring_back(folder / RESUME / BEST, model, standing.best.step)
    return told | {"development": standing.best.facts(development, done["step"])}


def _walk(run: "_Run", standing: checkpoints.Standing, folder: Path) -> dict[str, Any]:
    """Step by step from where the training stands to its end; what happened at the last one."""
    schedule, best = run.schedule, standing.best
    patience = None if run.development is None else run.development.patience
    with open(folder / METRICS, "ab") as metrics, console.meter("training", schedule.steps) as meter:
        metrics.truncate(standing.metrics_bytes)
        meter.advance(standing.step)
        saved = time.monotonic()
        for step in range(standing.step, schedule.steps):
            facts = run.step(step)
            found = run.judged(step + 1, best)
            metrics.write((json.dumps(facts | found) + "\n").encode())
            meter.advance(1, _shown(facts))
            if best.exhausted(patience):
                log.info("stopping after step %d: %d evaluations without a better value", step + 1, best.since)
                break
            late = (time.monotonic() - saved) / 60 >= schedule.save_minutes or (found and best.since == 0)
            if late and step + 1 < schedule.steps:
                metrics.flush()
                now = checkpoints.Standing(step + 1, metrics.tell(), best)
                checkpoints.save(folder / RESUME / STATE, run.checkpoint.architecture, run.optimiser, now)
                saved = time.monotonic()
    return facts | found


@dataclass
class _Run:
    """What stays the same from step to step."""

    checkpoint: OpenCheckpoint
    plan: Steps
    texts: Sequence[Texts]
    objective: Callable[[Batch], Outcome]
    schedule: Schedule
    optimiser: torch.optim.Optimizer
    accelerator: Accelerator
    dtype: torch.dtype
    development: Development | None
    kept: Path

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
            group["lr"] = self.schedule.rate(step, group["peak"])
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        seconds = time.monotonic() - began
        facts = {"step": step + 1, **outcome.facts, "gradient_norm": norm, "learning_rate": rate, "tokens": tokens}
        return facts | {"tokens_per_second": tokens / seconds, "seconds": seconds}

    def _outcome(self, step: int) -> tuple[Outcome, int]:
        """The objective on the batch of a step, and how many tokens that was."""
        drawn, device = self.plan.at(step), self.checkpoint.device
        texts = self.texts[drawn.place]
        torch.manual_seed(self.schedule.seed * 1_000_003 + step)
        queries = self.checkpoint.read([texts.queries[one] for one in drawn.queries], "query")
        documents = self.checkpoint.read([texts.documents[one] for one in drawn.documents], "document")
        with autocast(self.dtype, str(device)):
            encoded = self.checkpoint.architecture(queries), self.checkpoint.architecture(documents)
        teacher = None if (said := drawn.teacher()) is None else said.to(device)
        outcome = self.objective(Batch(*encoded, drawn.ignored().to(device), step, self.schedule.steps, teacher))
        return outcome, len(queries.ids) + len(documents.ids)

    def judged(self, step: int, best: Best) -> dict[str, float]:
        """What the development queries say of the weights after `step` steps, where it is time to ask; the best are kept."""
        given = self.development
        if given is None or not given.due(step, self.schedule.steps):
            return {}
        facts = evaluated(self.checkpoint, given, self.dtype)
        value, *others = facts.values()
        if best.better(step, value) and given.keep == "best":
            checkpoints.keep(self.kept / BEST, self.checkpoint.architecture, step)
        names = [key.removeprefix("dev.").removesuffix(f".{given.measure}") for key in list(facts)[1:]]
        experts = ", ".join(f"{name} {other:.4f}" for name, other in zip(names, others, strict=True))
        words = f" ({experts})" if experts else ""
        log.info("step %d: development %s %.4f%s; best %.4f after step %d", step, given.measure, value, words, best.value, best.step)
        return facts


def _shown(facts: Mapping[str, float]) -> str:
    """A few words of a step for people: the loss, and who is winning."""
    shares = " ".join(f"{key.removeprefix('share.')} {facts[key]:.2f}" for key in facts if key.startswith("share."))
    return f"loss {facts['loss']:.3f}" + (f", shares {shares}" if shares else "")
