"""Metrics of every step logged to TensorBoard or Weights & Biases through accelerate; a resumed training continues its curves."""

import importlib
import importlib.util
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moeir.artifacts import atomic_write
from moeir.errors import UsageError

if TYPE_CHECKING:
    from accelerate import Accelerator

PACKAGES = {"tensorboard": ("tensorboard", "tensorboardX"), "wandb": ("wandb",)}  # alternatives, one is enough
PROJECT, RUN_ID_FILE = "moeir", "run-id"


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


def accelerator_options(tracking: Tracking | None) -> dict[str, Any]:
    """Keyword arguments of Accelerator."""
    return {} if tracking is None else {"log_with": list(tracking.names), "project_dir": tracking.folder("tensorboard")}


@contextmanager
def track(accelerator: "Accelerator", tracking: Tracking | None, step: int) -> Iterator[None]:
    """Start the trackers, or resume them after `step` steps: TensorBoard purges later steps, W&B resumes the run by its saved id."""
    if tracking is None:
        yield
        return
    try:
        accelerator.init_trackers(PROJECT, init_kwargs={name: _init_kwargs(tracking, name, step, accelerator) for name in tracking.names})
    except _init_errors(tracking.names) as error:
        raise UsageError(f"--track wandb: {error}; wandb login, or WANDB_MODE=offline without an account") from None
    try:
        yield
    finally:
        for tracker in accelerator.trackers:
            tracker.finish()


def log_step(accelerator: "Accelerator", facts: Mapping[str, float]) -> None:
    """Log the metrics of a step: `share.lexical` as `share/lexical`, so that trackers group them."""
    if accelerator.trackers:
        values = {name.replace(".", "/", 1): value for name, value in facts.items() if name != "step"}
        accelerator.log(values, step=int(facts["step"]))


def _init_kwargs(tracking: Tracking, name: str, step: int, accelerator: "Accelerator") -> dict[str, Any]:
    """Init arguments of a tracker for a training after `step` steps."""
    if name == "tensorboard":
        return {"purge_step": step + 1, "filename_suffix": f".after-{step}"}  # file names otherwise differ only by the second
    folder = tracking.folder(name)
    if accelerator.is_main_process:
        folder.mkdir(parents=True, exist_ok=True)
        if step == 0 or not (folder / RUN_ID_FILE).is_file():
            atomic_write.write_text_atomically(folder / RUN_ID_FILE, f"{secrets.token_hex(4)}\n")
    run = (folder / RUN_ID_FILE).read_text(encoding="utf-8").strip() if accelerator.is_main_process else None
    return {"dir": str(folder), "name": tracking.product.name, "id": run, "resume": "allow", "config": dict(tracking.settings)}


def _init_errors(names: tuple[str, ...]) -> tuple[type[Exception], ...]:
    """Exceptions that a tracker raises if it cannot start."""
    return (importlib.import_module("wandb").Error,) if "wandb" in names else ()
