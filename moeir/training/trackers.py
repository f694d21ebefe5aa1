"""Metrics of every step logged to TensorBoard or Weights & Biases; a resumed training continues its curves."""

import importlib
import importlib.util
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from moeir.artifacts import atomic_write
from moeir.errors import UsageError

PACKAGES = {"tensorboard": ("tensorboard", "tensorboardX"), "wandb": ("wandb",)}  # alternatives, one is enough
PROJECT, RUN_ID_FILE = "moeir", "run-id"
Logger: TypeAlias = Callable[[Mapping[str, float], int], None]  # values of a step, and its number
LogStep: TypeAlias = Callable[[Mapping[str, float]], None]


def check_installed(names: Sequence[str]) -> None:
    """UsageError for a tracker without its package."""
    for name in names:
        if not any(importlib.util.find_spec(package) for package in PACKAGES[name]):
            raise UsageError(f"--track {name}: the package {name} is not installed; pip install 'moeir[track]'")


@contextmanager
def track(names: Sequence[str], product: Path, settings: Mapping[str, Any], step: int) -> Iterator[LogStep]:
    """A function that logs the metrics of a step of the training of a checkpoint, `product`, beside which the files of trackers lie:
    `ckpt/came.tensorboard`. They resume after `step` steps: TensorBoard purges later ones, W&B resumes its run.

    `share.lexical` is logged as `share/lexical`, so that trackers group it.
    """
    with ExitStack() as stack:
        folders = {name: product.with_name(f"{product.name}.{name}") for name in dict.fromkeys(names)}
        loggers = [stack.enter_context(_STARTERS[name](folder, product.name, settings, step)) for name, folder in folders.items()]

        def log_step(metrics: Mapping[str, float]) -> None:
            values = {name.replace(".", "/", 1): value for name, value in metrics.items() if name != "step"}
            for log in loggers:
                log(values, int(metrics["step"]))

        yield log_step


@contextmanager
def _start_tensorboard(folder: Path, name: str, settings: Mapping[str, Any], step: int) -> Iterator[Logger]:
    package = "torch.utils.tensorboard" if importlib.util.find_spec("tensorboard") else "tensorboardX"
    suffix = f".after-{step}"  # file names otherwise differ only by the second
    writer = importlib.import_module(package).SummaryWriter(str(folder / PROJECT), purge_step=step + 1, filename_suffix=suffix)

    def log(values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    with closing(writer):
        yield log


@contextmanager
def _start_wandb(folder: Path, name: str, settings: Mapping[str, Any], step: int) -> Iterator[Logger]:
    wandb, run_id_file = importlib.import_module("wandb"), folder / RUN_ID_FILE
    folder.mkdir(parents=True, exist_ok=True)
    if step == 0 or not run_id_file.is_file():
        atomic_write.write_text_atomically(run_id_file, f"{secrets.token_hex(4)}\n")
    run_id = run_id_file.read_text(encoding="utf-8").strip()
    try:
        run = wandb.init(project=PROJECT, dir=str(folder), name=name, id=run_id, resume="allow", config=dict(settings))
    except wandb.Error as error:
        raise UsageError(f"--track wandb: {error}; wandb login, or WANDB_MODE=offline without an account") from None
    try:
        yield lambda values, step: run.log(values, step=step)
    finally:
        run.finish()


_STARTERS = {"tensorboard": _start_tensorboard, "wandb": _start_wandb}
NO_TRACKER = partial(track, (), Path(), {})
