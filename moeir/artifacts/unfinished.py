"""Unfinished work: the path that a product is written to before it has its name, and what to say where the product itself is asked for."""

import fcntl
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

RESUME = "resume"
TRAINING_STATE = Path("state", "state.json")  # within resume/: the steps of a training that are saved
TRAININGS = ("finetune", "pretrain")


def partial_path(path: Path) -> Path:
    """The path a product is written to before it is renamed to `path`.

    >>> partial_path(Path("ckpt/came")), final_path(partial_path(Path("ckpt/came")))
    (PosixPath('ckpt/.came.partial'), PosixPath('ckpt/came'))
    """
    return path.with_name(f".{path.name}.partial")


def final_path(partial: Path) -> Path:
    """The final path of the product written at a partial path; the inverse of `partial_path`."""
    return partial.with_name(partial.name.removeprefix(".").removesuffix(".partial"))


def backup_path(path: Path) -> Path:
    """Where an earlier file or folder stays until its successor has its name."""
    return path.with_name(f".{path.name}.old")


def record_path(path: Path) -> Path:
    """The file with stage, settings and source digests of the unfinished work for `path`."""
    return path.with_name(f".{path.name}.record")


def lock_path(path: Path) -> Path:
    """The file that a process locks while it writes `path`."""
    return path.with_name(f".{path.name}.lock")


def is_locked(path: Path) -> bool:
    """Whether a process is writing `path`."""
    with suppress(OSError), open(lock_path(path), encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def resume_path(partial: Path) -> Path:
    """The folder of a stage's resume state: inside a product that is a folder, next to one that is a file."""
    return partial / RESUME if partial.is_dir() else partial.with_name(f"{partial.name}.{RESUME}")


def describe_unfinished(path: Path) -> str | None:
    """What is unfinished at `path`, the name of a product or its partial path, and how to finish it, or that a process is at work on it;
    None if there is no such work."""
    if not path.name:
        return None
    final = final_path(path) if path.name.startswith(".") and path.name.endswith(".partial") else path
    partial, record = partial_path(final), read_record(final)
    is_written = record is not None and is_locked(final)
    if record is None or not (is_written or partial.exists()):
        return None
    state = read_json(resume_path(partial) / TRAINING_STATE)
    done = "" if state is None else f" step {state['step']:,}" + (f" of {state['steps']:,}" if state.get("steps") else "")
    if is_written:
        verb = "training" if maker(record) in TRAININGS else "writing"
        return f"unfinished:{done and done + ';'} a process is {verb} it (moeir {maker(record)}); wait until it has ended"
    return f"unfinished:{done and done + ';'} run the same {maker(record)} command again to continue"


def maker(record: Mapping[str, Any]) -> str:
    """The command that made what a record or a manifest describes here: pull for a product of the Hub, whatever stage made it elsewhere."""
    return "pull" if "hub" in record else str(record.get("stage"))


def read_record(path: Path) -> dict[str, Any] | None:
    """The record of the unfinished work for `path`; None if there is no such file, or one that moeir did not write."""
    record = read_json(record_path(path))
    return record if record is not None and {"stage", "settings", "sources"} <= record.keys() else None


def read_json(path: Path) -> dict[str, Any] | None:
    """The JSON object of a file; None if there is no such file or it holds anything else."""
    with suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError, ValueError, RecursionError):
        loaded = json.loads(path.read_text(encoding="utf-8"))
        return loaded if isinstance(loaded, dict) else None
    return None
