"""Unfinished work: the folder beside a product in which it is written, and what to say where the product itself is asked for."""

import fcntl
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"
RESUME = "resume"
TRAINING_STATE = Path("state", "state.json")  # within resume/: the steps of a training that are saved
TRAININGS = ("finetune", "pretrain")


class WorkFolder:
    """The hidden folder beside a product that holds everything its writing needs: one name beside a product is ours, and one rename away.

    The partial product has its final name there. The other names are longer: the `record` of stage, settings and source digests, the `lock`
    of the process that writes, the manifest of a file until it is beside it, the folder that is replaced (`old`), a file's resume state.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.folder = path, path.with_name(f".{path.name}.partial")
        self.partial = self.folder / path.name
        self.record, self.lock, self.old = (self.folder / f"{path.name}.{word}" for word in ("record", "lock", "old"))
        self.manifest = self.folder / f"{path.name}.{MANIFEST}"
        self.manifest_beside = path.with_name(self.manifest.name)

    @classmethod
    def from_any(cls, path: Path) -> "WorkFolder":
        """That of a product, named by its own path, by its partial path, or by the folder."""
        is_folder = path.name.startswith(".") and path.name.endswith(".partial")
        return cls(path.with_name(path.name[1:].removesuffix(".partial")) if is_folder else final_path(path))

    def read_record(self) -> dict[str, Any] | None:
        """The record of the work; None if there is no such file, or one that moeir did not write."""
        record = read_json(self.record)
        return record if record is not None and {"stage", "settings", "sources"} <= record.keys() else None

    def is_locked(self) -> bool:
        """Whether a process is writing the product."""
        with suppress(OSError), open(self.lock, encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False


def partial_path(path: Path) -> Path:
    """The path a product is written to before it is renamed to `path`.

    >>> partial_path(Path("ckpt/came")), final_path(partial_path(Path("ckpt/came")))
    (PosixPath('ckpt/.came.partial/came'), PosixPath('ckpt/came'))
    """
    return WorkFolder(path).partial


def final_path(path: Path) -> Path:
    """The final path of the product written at a partial path; any other path stays."""
    return path.parent.with_name(path.name) if path.parent.name == f".{path.name}.partial" else path


def resume_path(partial: Path) -> Path:
    """The folder of a stage's resume state: inside a product that is a folder, next to one that is a file."""
    return partial / RESUME if partial.is_dir() else partial.with_name(f"{partial.name}.{RESUME}")


def describe_unfinished(path: Path) -> str | None:
    """What is unfinished at `path`, the name of a product or its partial path, and how to finish it, or that a process is at work on it;
    None if there is no such work."""
    if not path.name:
        return None
    work = WorkFolder.from_any(path)
    record, is_written = work.read_record(), work.is_locked()
    if record is None or not (is_written or work.partial.exists()):
        return None
    state = read_json(resume_path(work.partial) / TRAINING_STATE)
    done = "" if state is None else f" step {state['step']:,}" + (f" of {state['steps']:,}" if state.get("steps") else "")
    if is_written:
        verb = "training" if maker(record) in TRAININGS else "writing"
        return f"unfinished:{done and done + ';'} a process is {verb} it (moeir {maker(record)}); wait until it has ended"
    return f"unfinished:{done and done + ';'} run the same {maker(record)} command again to continue"


def maker(record: Mapping[str, Any]) -> str:
    """The command that made what a record or a manifest describes here: pull for a product of the Hub, whatever stage made it elsewhere."""
    return "pull" if "hub" in record else str(record.get("stage"))


def read_json(path: Path) -> dict[str, Any] | None:
    """The JSON object of a file; None if there is no such file or it holds anything else."""
    with suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError, ValueError, RecursionError):
        loaded = json.loads(path.read_text(encoding="utf-8"))
        return loaded if isinstance(loaded, dict) else None
    return None
