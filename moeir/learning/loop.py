"""The training loop: one step at a time, every random choice a function of (seed, step), saved so that a kill costs minutes."""

import json
import logging
import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from moeir.analysis import watching
from moeir.analysis.watching import METRICS
from moeir.artifacts.making import RESUME
from moeir.errors import MoeirError
from moeir.kernels.memory import give_back
from moeir.kernels.noise import numbered
from moeir.learning import checkpoints, panel, parameters, trackers
from moeir.learning.distributed import ALONE, World
from moeir.learning.retrieval import Judge

LOWER = "start over with a lower --learning-rate and --force; the last saved state is kept until then"
NOT_LEARNED = "nothing is learned yet: look at the weights, the options of --objective, and the teacher's scores in the examples"
SECONDS_BETWEEN_TRIMS = 60
STATE, BEST = "state", "best"  # within resume/, so that what a kill leaves of a half-made save goes with it
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Schedule:
    """How long and how fast: AdamW, linear warm-up over a ratio of the steps, then `linear` decay to zero or a `constant` rate.

    `layer_decay` and `rates` are those of `parameters.groups`; gradients are clipped by their norm. A step's gradient is the mean of
    `accumulate` batches.
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
    accumulate: int = 1

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


class Task(Protocol):
    """What a training teaches: a model, on so many examples, and what each step costs it."""

    @property
    def model(self) -> nn.Module:
        """All that learns."""

    @property
    def size(self) -> int:
        """Training examples."""

    def outcome(self, batch: int) -> tuple[Tensor, dict[str, float], int]:
        """The loss of a batch, counted from 0, the facts of it (`loss` among them), and how many tokens were read.

        Of several processes each gets the whole batch's facts, and a loss whose gradients add up to those of the whole batch's.
        """


def train(
    task: Task,
    schedule: Schedule,
    folder: Path,
    *,
    device: str,
    judge: Judge | None = None,
    tracking: trackers.Tracking | None = None,
    world: World = ALONE,
) -> dict[str, Any]:
    """Train in place; `folder` gets `metrics.jsonl` and, while training, `resume/`. Returns what the manifest keeps.

    `judge`, if any, judges the weights now and then on a development set; `tracking` says who else is told of every step. All processes
    of `world` call it alike; the main one writes.
    """
    accelerator = Accelerator(cpu=device == "cpu", **trackers.options(tracking))
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    model = task.model.to(device)
    numbered(model)
    options = {"weight_decay": schedule.weight_decay, "layer_decay": schedule.layer_decay, "rates": schedule.rates}
    grouped = parameters.groups(model, rate=schedule.learning_rate, **options)
    optimiser = torch.optim.AdamW(grouped, lr=schedule.learning_rate, eps=1e-8, fused=True)
    standing = checkpoints.load(folder / RESUME / STATE, model, optimiser)
    world.agreed({"steps": schedule.steps, "steps done": standing.step, "examples": task.size})
    world.same(model)
    if world.size > 1:
        log.info("%d processes share each batch: %s", world.size, "; ".join(world.names))
    if standing.step:
        log.info("continuing after step %d of %d", standing.step, schedule.steps)
    model.train()
    with trackers.opened(accelerator, tracking, standing.step):
        done = _walk(_Run(task, schedule, optimiser, accelerator, judge, world), standing, folder)
    model.eval()
    if not all(bool(parameter.isfinite().all()) for parameter in model.parameters()):
        raise MoeirError(f"step {done['step']}: weights are no numbers any more; {LOWER}")
    told = {"steps": done["step"], "examples": task.size, "last": {key: done[key] for key in done if key != "seconds"}}
    if judge is None:
        return told
    if judge.development.keep == "best" and world.main:
        checkpoints.bring_back(folder / RESUME / BEST, model, standing.best.step)
    return told | {"development": standing.best.facts(judge.development, done["step"])}


def _walk(run: "_Run", standing: checkpoints.Standing, folder: Path) -> dict[str, Any]:
    """Step by step from where the training stands to its end; what happened at the last one."""
    schedule, best = run.schedule, standing.best
    patience = None if run.judge is None else run.judge.development.patience
    watch = watching.rebuilt(watching.kept(folder / METRICS, standing.metrics_bytes))
    place = folder / METRICS if run.world.main else Path(os.devnull)
    with open(place, "ab") as metrics, panel.shown("training", schedule.steps, standing.step, watch) as meter:
        if run.world.main:
            metrics.truncate(standing.metrics_bytes)
        saved = trimmed = time.monotonic()
        for step in range(standing.step, schedule.steps):
            facts = run.step(step)
            found = {} if run.judge is None else run.judge.judged(step + 1, schedule.steps, best, folder / RESUME / BEST)
            metrics.write((json.dumps(facts | found) + "\n").encode())
            metrics.flush()
            trackers.note(run.accelerator, facts | found)
            for alarm in watch.take(facts | found):
                log.warning("%s", alarm)
            meter.advance(1, _shown(facts))
            if best.exhausted(patience):
                log.info("stopping after step %d: %d evaluations without a better value", step + 1, best.since)
                break
            if time.monotonic() - trimmed >= SECONDS_BETWEEN_TRIMS:
                give_back()
                trimmed = time.monotonic()
            late = (time.monotonic() - saved) / 60 >= schedule.save_minutes or (found and best.since == 0)
            if late and step + 1 < schedule.steps and run.world.main:
                now = checkpoints.Standing(step + 1, metrics.tell(), best)
                checkpoints.save(folder / RESUME / STATE, run.task.model, run.optimiser, now)
                saved = time.monotonic()
    return facts | found


@dataclass
class _Run:
    """What stays the same from step to step."""

    task: Task
    schedule: Schedule
    optimiser: torch.optim.Optimizer
    accelerator: Accelerator
    judge: Judge | None
    world: World

    def step(self, step: int) -> dict[str, float]:
        """One update, counted from 0; what happened. An expert that no text of the batch met stays as it is: no momentum, no decay."""
        began, rate, count = time.monotonic(), self.schedule.rate(step), self.schedule.accumulate
        every: list[dict[str, float]] = []
        tokens = 0
        for batch in range(step * count, (step + 1) * count):
            torch.manual_seed(self.schedule.seed * 1_000_003 + batch)
            loss, said, read = self.task.outcome(batch)
            if not math.isfinite(said["loss"]):
                raise MoeirError(f"step {step + 1}: the loss is {said['loss']}; {LOWER if step else NOT_LEARNED}")
            self.accelerator.backward(loss / count if count > 1 else loss)
            every.append(said)
            tokens += read
        said = every[0] if count == 1 else {name: sum(facts[name] for facts in every) / count for name in every[0]}
        parameters = list(self.task.model.parameters())
        self.world.add_gradients(parameters, f"the gradients of step {step + 1}")
        norm = float(self.accelerator.clip_grad_norm_(parameters, self.schedule.clip or math.inf))
        if not math.isfinite(norm):
            raise MoeirError(f"step {step + 1}: the gradient norm is {norm}; {LOWER}")
        for group in self.optimiser.param_groups:
            group["lr"] = self.schedule.rate(step, group["peak"])
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        seconds = time.monotonic() - began
        facts = {"step": step + 1, **said, "gradient_norm": norm, "learning_rate": rate, "tokens": tokens}
        return facts | {"tokens_per_second": tokens / seconds, "seconds": seconds}


def _shown(facts: Mapping[str, float]) -> str:
    """A few words of a step for people: the loss, and who is winning."""
    shares = " ".join(f"{key.removeprefix('share.')} {facts[key]:.2f}" for key in facts if key.startswith("share."))
    return f"loss {facts['loss']:.3f}" + (f", shares {shares}" if shares else "")
