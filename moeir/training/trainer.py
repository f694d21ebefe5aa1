"""The trainer: every random choice is a function of (seed, step), and the state is saved every few minutes, to resume after a kill."""

import json
import logging
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import IO, Any, Protocol

import torch
from torch import Tensor, nn

from moeir import console
from moeir.analysis import training_monitor
from moeir.analysis.training_monitor import METRICS_FILE
from moeir.architectures.base import StepMetrics
from moeir.artifacts.atomic_write import RESUME, sync_file
from moeir.artifacts.identity import release_held
from moeir.artifacts.unfinished import TRAINING_STATE
from moeir.backbones.device import set_determinism
from moeir.backbones.layers import store_adjacent
from moeir.distributed import SINGLE_PROCESS, ProcessGroup
from moeir.errors import MoeirError, UsageError
from moeir.kernels.heap import trim_heap
from moeir.training import param_groups, resume_state, trackers
from moeir.training.data_parallel import DataParallel, run_batch

LOWER_RATE_ADVICE = "start over with a lower --learning-rate and --force; until then the last saved state is kept"
FIRST_STEP_ADVICE = "no update was made yet: check the weights, the options of --objective, and the teacher scores in the examples"
SECONDS_BETWEEN_TRIMS = 60
LOG_EVERY = 10  # steps on CUDA, where reading a loss synchronizes the device
RANK_SEED_STRIDE = 7_919_000_003  # between the seeds of two processes
STATE_FOLDER, BEST_FOLDER = TRAINING_STATE.parent.name, "best"  # within resume/, with which the remains of a save are deleted
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Schedule:
    """Steps and learning rates of AdamW: linear warm-up over a ratio of the steps, then `linear` decay to zero or a `constant` rate.

    `layer_decay` and `group_rates` are those of `make_param_groups`; gradients are clipped by their norm. A step's gradient is the mean
    over `accumulate` batches.
    """

    steps: int
    learning_rate: float
    warmup: float = 0.1
    weight_decay: float = 0.0
    clip: float = 1.0
    seed: int = 42
    save_minutes: float = 5.0
    decay: str = "linear"
    layer_decay: float = 1.0
    group_rates: Mapping[str, float] = field(default_factory=dict)
    accumulate: int = 1

    def learning_rate_at(self, step: int, peak: float | None = None) -> float:
        """The learning rate of a step, counted from 0; `peak` is the highest rate.

        >>> schedule = Schedule(steps=10, learning_rate=1.0, warmup=0.2)
        >>> [round(schedule.learning_rate_at(step), 3) for step in (0, 1, 2, 9)]
        [0.5, 1.0, 1.0, 0.125]
        """
        peak = self.learning_rate if peak is None else peak
        rising = max(1, round(self.warmup * self.steps)) if self.warmup else 0
        if step < rising:
            return peak * (step + 1) / rising
        return peak if self.decay == "constant" else peak * (self.steps - step) / max(1, self.steps - rising)


class TrainingTask(Protocol):
    """A model, its number of training examples, and the loss of each batch."""

    @property
    def model(self) -> nn.Module:
        """The module to train."""

    @property
    def size(self) -> int:
        """Training examples."""

    def compute_loss(self, batch: int) -> tuple[Tensor, StepMetrics, int]:
        """The loss of a batch, counted from 0, its metrics (`loss` among them), and how many tokens were read.

        With several processes each gets the metrics of the whole batch and its own part of the loss: gradients are summed over processes.
        """


class Evaluator(Protocol):
    """Measures the weights while they are trained, every `every` steps and after the last one.

    Training ends after `patience` evaluations without a better value; `keeps_best` keeps the best weights, not the last.
    """

    every: int
    patience: int | None
    keeps_best: bool

    def evaluate(self, step: int, best: resume_state.BestTracker) -> dict[str, float]:
        """Metrics of the weights after `step` steps; `best` records the one that decides."""

    def manifest_entry(self) -> dict[str, Any]:
        """What the weights are measured on."""


def train(
    task: TrainingTask,
    schedule: Schedule,
    folder: Path,
    *,
    device: str,
    evaluator: Evaluator | None = None,
    track: Callable[[int], AbstractContextManager[trackers.LogStep]] = trackers.NO_TRACKER,
    process_group: ProcessGroup = SINGLE_PROCESS,
    log_every: int | None = None,
    checkpoint: tuple[int, Callable[[int], None]] | None = None,
    objective_state: Mapping[str, Tensor] = resume_state.NOTHING,
) -> dict[str, Any]:
    """Train in place; `folder` gets `metrics.jsonl` and, while training, `resume/`. Returns the counts for the manifest.

    `track`, called with the steps done, gives a function of the metrics of each step. All processes of `process_group` make the same call;
    the main one writes.
    `objective_state` are tensors that each step changes in place, saved and loaded with the weights.
    `checkpoint` is a number of steps, after each of which but the last the main process calls the function with the steps so far.
    Metrics are read from the device every `log_every` steps (None: 10 on CUDA, 1 on a CPU); a NaN ends the training
    when it is read, and state is saved only after a reading without NaN.
    """
    if torch.device(device).type == "cpu":
        set_determinism(device, deterministic=True)
    model = task.model.to(device)
    store_adjacent(model)
    groups = param_groups.make_param_groups(
        model,
        learning_rate=schedule.learning_rate,
        weight_decay=schedule.weight_decay,
        layer_decay=schedule.layer_decay,
        group_rates=schedule.group_rates,
    )
    optimiser = torch.optim.AdamW(groups, lr=schedule.learning_rate, eps=1e-8, fused=True)
    state = resume_state.load_state(folder / RESUME / STATE_FOLDER, model, optimiser, objective_state)
    if state.processes not in (None, process_group.size):  # dropout and the order of sums would be those of neither number
        expected = f"expected {state.processes}, as for the first {state.step} steps, found {process_group.size}"
        raise UsageError(f"number of processes: {expected}; start as many to continue, or add --force to start over")
    release_held(products_only=False)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if process_group.size > 1:
        facts = {"numbers to train": sum(map(Tensor.numel, trained)), "the sum of frozen weights": _sum_frozen_bytes(model)}
        process_group.check_same({"steps": schedule.steps, "steps done": state.step, "examples": task.size} | facts)
        run: Callable[..., tuple[StepMetrics, int]] = DataParallel(task.compute_loss, trained, process_group).run_batch
        log.info("%d processes share each batch: %s", process_group.size, "; ".join(process_group.names))
    else:
        run = partial(run_batch, task.compute_loss)
    if state.step:
        log.info("continuing after step %d of %d", state.step, schedule.steps)
    model.train()
    with track(state.step) as log_step:
        parts = process_group, torch.device(device), folder, checkpoint, objective_state
        trainer = _Trainer(task, run, schedule, optimiser, log_step, evaluator, *parts)
        done = trainer.run(state, log_every or (LOG_EVERY if trainer.device.type == "cuda" else 1))
    model.eval()
    if not bool(torch.stack([parameter.isfinite().all() for parameter in model.parameters() if parameter.requires_grad]).all()):
        raise MoeirError(f"step {done['step']}: the weights contain NaN or Inf; {LOWER_RATE_ADVICE}")
    counts = {"steps": done["step"], "examples": task.size, "last": {key: done[key] for key in done if key != "seconds"}}
    if evaluator is None:
        return counts
    best = state.best
    if evaluator.keeps_best and process_group.is_main:
        resume_state.load_best(folder / RESUME / BEST_FOLDER, model, best.step)
    values = {"value": best.value, "step": best.step, "evaluations": best.evaluations}
    stopped_after = done["step"] if best.should_stop(evaluator.patience) else None
    return counts | {"development": evaluator.manifest_entry() | values | {"stopped_after": stopped_after}}


@dataclass
class _Trainer:
    """The parts of a training, and the steps whose metrics are not yet read from the device."""

    task: TrainingTask
    run_batch: Callable[..., tuple[StepMetrics, int]]
    schedule: Schedule
    optimiser: torch.optim.Optimizer
    log_step: trackers.LogStep
    evaluator: Evaluator | None
    process_group: ProcessGroup
    device: torch.device
    folder: Path
    checkpoint: tuple[int, Callable[[int], None]] | None
    objective_state: Mapping[str, Tensor]
    pending: list[tuple[int, StepMetrics, int]] = field(default_factory=list)  # step, metrics, tokens
    _pending_since: float = 0.0

    def run(self, state: resume_state.TrainingState, log_every: int) -> dict[str, Any]:
        """Train from the resumed step to the end; returns the metrics of the last step."""
        schedule, best, evaluator, model = self.schedule, state.best, self.evaluator, self.task.model
        monitor = training_monitor.replay(training_monitor.read_metrics_prefix(self.folder / METRICS_FILE, state.metrics_bytes))
        is_main = self.process_group.is_main
        metrics_path = self.folder / METRICS_FILE if is_main else Path(os.devnull)
        with open(metrics_path, "ab") as metrics_file, console.meter("training", schedule.steps, done=state.step) as meter:
            if is_main:
                metrics_file.truncate(state.metrics_bytes)
            last_save = last_trim = time.monotonic()
            for step in range(state.step, schedule.steps):
                self.step(step)
                is_last = step + 1 == schedule.steps
                evaluation_due = evaluator is not None and ((step + 1) % evaluator.every == 0 or is_last)
                checkpoint_due = self.checkpoint is not None and (step + 1) % self.checkpoint[0] == 0 and not is_last
                save_due = is_main and (time.monotonic() - last_save) / 60 >= schedule.save_minutes
                reads_to_save = save_due and self.process_group.size == 1  # of several processes, only one sees that time is up
                if len(self.pending) < log_every and not (reads_to_save or evaluation_due or checkpoint_due or is_last):
                    continue
                records = self.read_pending()
                is_best = False
                if evaluator is not None and evaluation_due and not any(map(_nan_error, records)):
                    records[-1] |= evaluator.evaluate(step + 1, best)
                    model.train()
                    is_best = best.since == 0 and is_main
                    if is_best and evaluator.keeps_best:
                        resume_state.save_best(self.folder / RESUME / BEST_FOLDER, model, step + 1)
                self.log_records(records, metrics_file, monitor)
                if self.checkpoint is not None and checkpoint_due and is_main:
                    self.checkpoint[1](step + 1)
                meter.advance(len(records), _progress_note(records[-1]))
                if evaluator is not None and best.should_stop(evaluator.patience):
                    log.info("stopping after step %d: %d evaluations without a better value", step + 1, best.since)
                    break
                if time.monotonic() - last_trim >= SECONDS_BETWEEN_TRIMS:
                    trim_heap()
                    last_trim = time.monotonic()
                if (save_due or is_best) and not is_last:
                    sync_file(metrics_path)  # the state refers to its length
                    done = resume_state.TrainingState(step + 1, metrics_file.tell(), best, schedule.steps, self.process_group.size)
                    resume_state.save_state(self.folder / RESUME / STATE_FOLDER, model, self.optimiser, done, self.objective_state)
                    last_save = time.monotonic()
        return records[-1]

    def step(self, step: int) -> None:
        """One update, counted from 0.

        An expert that no text of the batch chose has no gradient, so the optimiser leaves it unchanged. Where experts are computed together
        (`kernels.grouped_linear`, SB-MoE's on CUDA) its gradient is zero instead, and momentum and weight decay still apply.
        """
        if not self.pending:
            self._pending_since = time.monotonic()
            if self.device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(self.device)
        count = self.schedule.accumulate
        batch_metrics, tokens = [], 0
        for batch in range(step * count, (step + 1) * count):
            torch.manual_seed(self.schedule.seed * 1_000_003 + batch + self.process_group.rank * RANK_SEED_STRIDE)
            metrics, read = self.run_batch(batch, batches=count, is_last=(batch + 1) % count == 0)
            batch_metrics.append(metrics)
            tokens += read
        metrics = batch_metrics[0] if count == 1 else {name: sum(one[name] for one in batch_metrics) / count for name in batch_metrics[0]}
        parameters = [parameter for parameter in self.task.model.parameters() if parameter.requires_grad]
        metrics = {**metrics, "gradient_norm": nn.utils.clip_grad_norm_(parameters, self.schedule.clip or math.inf)}
        for group in self.optimiser.param_groups:
            group["lr"] = self.schedule.learning_rate_at(step, group["peak"])
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        self.pending.append((step, metrics, tokens))

    def log_records(self, records: Sequence[dict[str, float]], file: IO[bytes], monitor: training_monitor.TrainingMonitor) -> None:
        """Write the metrics of some steps, send them to the trackers and raise alarms; the error of a step whose loss is not finite."""
        for metrics in records:
            if (error := _nan_error(metrics)) is not None:
                raise error
            file.write((json.dumps(metrics) + "\n").encode())
            self.log_step(metrics)
            for alarm in monitor.update(metrics):
                log.warning("%s", alarm)
        file.flush()

    @cached_property
    def decoder_peak(self) -> float | None:
        """The highest learning rate of a pre-training's decoder."""
        decoder = {id(parameter) for name, parameter in self.task.model.named_parameters() if name.startswith("decoder.")}
        peaks = [group["peak"] for group in self.optimiser.param_groups if not decoder.isdisjoint(map(id, group["params"]))]
        return max(peaks, default=None)

    def read_pending(self) -> list[dict[str, float]]:
        """The metrics of the steps since the last call, with one synchronization of the device."""
        self.process_group.wait_on_host(f"step {self.pending[-1][0] + 1}")
        metrics_by_step = metrics_to_floats([metrics for _, metrics, _ in self.pending])
        seconds = (time.monotonic() - self._pending_since) / len(self.pending)
        memory = {}
        if self.device.type == "cuda":
            memory["peak_memory_bytes"] = torch.cuda.max_memory_allocated(self.device)
        records = []
        for (step, _, tokens), metrics in zip(self.pending, metrics_by_step, strict=True):
            metrics = {"step": step + 1, **metrics, "learning_rate": self.schedule.learning_rate_at(step), "tokens": tokens}
            if self.decoder_peak is not None:
                metrics[training_monitor.DECODER_RATE] = self.schedule.learning_rate_at(step, self.decoder_peak)
            records.append(metrics | {"tokens_per_second": tokens / seconds, "seconds": seconds} | memory)
        self.pending.clear()
        return records


def _sum_frozen_bytes(model: nn.Module) -> int:
    """The sum of all bytes of the weights that do not train, which processes do not exchange."""
    frozen = (tensor for tensor in model.state_dict(keep_vars=True).values() if not tensor.requires_grad)
    return sum(int(tensor.detach().flatten().view(torch.uint8).sum(dtype=torch.int64)) for tensor in frozen)


def _nan_error(metrics: Mapping[str, float]) -> MoeirError | None:
    """The error of a step whose loss or gradient norm is not finite; None for any other."""
    for name, key in (("loss", "loss"), ("gradient norm", "gradient_norm")):
        if not math.isfinite(metrics[key]):
            advice = FIRST_STEP_ADVICE if key == "loss" and metrics["step"] == 1 else LOWER_RATE_ADVICE
            return MoeirError(f"step {metrics['step']:g}: the {name} is {metrics[key]}; {advice}")
    return None


def metrics_to_floats(steps: Sequence[StepMetrics]) -> list[dict[str, float]]:
    """The metrics of some steps as numbers; tensors are read from the device at once."""
    tensors = [value for metrics in steps for value in metrics.values() if isinstance(value, Tensor)]
    values = iter(torch.stack(tensors).tolist() if tensors else [])
    return [{name: next(values) if isinstance(value, Tensor) else value for name, value in metrics.items()} for metrics in steps]


def _progress_note(metrics: Mapping[str, float]) -> str:
    """The loss and the experts' shares of a step, for the progress line."""
    shares = " ".join(f"{key.removeprefix('share.')} {metrics[key]:.2f}" for key in metrics if key.startswith("share."))
    return f"loss {metrics['loss']:.3f}" + (f", shares {shares}" if shares else "")
