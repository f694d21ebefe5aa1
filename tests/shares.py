"""Fake shard jobs with a chosen behaviour; they import little, so that processes start quickly."""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from moeir import console
from moeir.errors import DataError
from moeir.settings import option
from moeir.stages import sharing
from moeir.stages.base import Stage

__all__ = ["alive", "pids", "shares", "sharing"]


@dataclass(frozen=True, kw_only=True)
class Fake(Stage):
    """A stage with a chosen behaviour."""

    does: str = option("What.", "")
    place: str = option("Where.", "")

    def begin(self, *, force: bool) -> None:
        if self.does != "ends":  # a process without progress reports is not waited for
            console.Meter("faking", 3).advance(2)
        Path(self.place, f"{os.getpid()}.pid").touch()  # last: the test may kill the parent as soon as the file exists
        if self.does == "fails":
            raise DataError("corpus.jsonl:7: broken")
        if self.does == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.does == "errs":
            raise ZeroDivisionError
        if self.does == "sleeps":
            time.sleep(100)


def shares(folder: Path, *doings: str) -> list[sharing.Share]:
    return [sharing.Share(Fake(does=does, place=str(folder)), f"{row}/{len(doings)}", "cpu", 3, 1) for row, does in enumerate(doings)]


def pids(folder: Path) -> list[int]:
    return [int(file.stem) for file in folder.glob("*.pid")]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):  # the second if it ends between opening and reading
        return False
