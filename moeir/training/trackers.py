"""Metrics of every step logged to TensorBoard or Weights & Biases; a resumed training continues its curves."""

import importlib
import importlib.util
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from moeir.artifacts import atomic_write
from moeir.errors import UsageError

PACKAGES = {"tensorboard": ("tensorboard", "tensorboardX"), "wandb": ("wandb",)}  # alternatives, one is enough
PROJECT, RUN_ID_FILE = "moeir", "run-id"
Logger: TypeAlias = Callable[[Mapping[str, float], int], None]  # values of a step, and its number


@dataclass(frozen=True)
class Tracking:
    """Trackers, the path of the checkpoint that is trained, and its settings. Their folders lie beside the checkpoint."""

    names: tuple[str, ...]
    product: Path
    settings: Mapping[str, Any]

    def folder(self, name: str) -> Path:
        """Folder of a tracker's files: `ckpt/came.tensorboard` beside `ckpt/came`."""
        return self.product.with_name(f"{self.product.name}.{name}")


def parse_trackers(flags: tuple[str, ...]) -> tuple[str, ...]:
    """Tracker names from flags, each one name or several with commas; UsageError if one is unknown or not installed."""
    names = tuple(dict.fromkeys(name.strip() for flag in flags for name in flag.split(",")))
    for name in names:
        if name not in PACKAGES:
            raise UsageError(f"--track {name}: expected {' or '.join(PACKAGES)}")
        if not any(importlib.util.find_spec(package) for package in PACKAGES[name]):
            raise UsageError(f"--track {name}: the package {name} is not installed; pip install 'moeir[track]'")
    return names


def make_tracking(flags: tuple[str, ...], beside: Path, settings: Mapping[str, Any]) -> Tracking | None:
    """The trackers of the training whose checkpoint is written at `beside`; None without flags."""
    return Tracking(parse_trackers(flags), atomic_write.final_path(beside), settings) if flags else None


@contextmanager
def track(tracking: Tracking | None, step: int) -> Iterator[Callable[[Mapping[str, float]], None]]:
    """A function that logs the metrics of a step; trackers resume after `step` steps: TensorBoard purges later ones, W&B resumes its run.

    `share.lexical` is logged as `share/lexical`, so that trackers group it.
    """
    with ExitStack() as stack:
        loggers = [] if tracking is None else [stack.enter_context(_STARTERS[name](tracking, step)) for name in tracking.names]

        def log_step(metrics: Mapping[str, float]) -> None:
            values = {name.replace(".", "/", 1): value for name, value in metrics.items() if name != "step"}
            for log in loggers:
                log(values, int(metrics["step"]))

        yield log_step


@contextmanager
def _start_tensorboard(tracking: Tracking, step: int) -> Iterator[Logger]:
    package = "torch.utils.tensorboard" if importlib.util.find_spec("tensorboard") else "tensorboardX"
    folder = tracking.folder("tensorboard") / PROJECT
    suffix = f".after-{step}"  # file names otherwise differ only by the second
    writer = importlib.import_module(package).SummaryWriter(str(folder), purge_step=step + 1, filename_suffix=suffix)

    def log(values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    with closing(writer):
        yield log


@contextmanager
def _start_wandb(tracking: Tracking, step: int) -> Iterator[Logger]:
    wandb, folder = importlib.import_module("wandb"), tracking.folder("wandb")
    folder.mkdir(parents=True, exist_ok=True)
    if step == 0 or not (folder / RUN_ID_FILE).is_file():
        atomic_write.write_text_atomically(folder / RUN_ID_FILE, f"{secrets.token_hex(4)}\n")
    run_id = (folder / RUN_ID_FILE).read_text(encoding="utf-8").strip()
    options = {"dir": str(folder), "name": tracking.product.name, "id": run_id, "resume": "allow", "config": dict(tracking.settings)}
    try:
        run = wandb.init(project=PROJECT, **options)
    except wandb.Error as error:
        raise UsageError(f"--track wandb: {error}; wandb login, or WANDB_MODE=offline without an account") from None
    try:
        yield lambda values, step: run.log(values, step=step)
    finally:
        run.finish()


_STARTERS = {"tensorboard": _start_tensorboard, "wandb": _start_wandb}
