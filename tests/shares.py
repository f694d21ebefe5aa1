"""Shares for processes that do as they are told: little is loaded, so that they are quick to start."""

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
    """Does as it is told."""

    does: str = option("What.", "")
    place: str = option("Where.", "")

    def begin(self, *, force: bool) -> None:
        if self.does != "ends":  # one that has told of nothing is not waited for
            console.Meter("faking", 3).advance(2)
        Path(self.place, f"{os.getpid()}.pid").touch()  # last: whoever finds it may kill the one that listens
        if self.does == "fails":
            raise DataError("corpus.jsonl:7: broken")
        if self.does == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.does == "errs":
            raise ZeroDivisionError
        if self.does == "sleeps":
            time.sleep(100)


def shares(place: Path, *doings: str) -> list[sharing.Share]:
    return [sharing.Share(Fake(does=does, place=str(place)), f"{row}/{len(doings)}", "cpu", 3, 1) for row, does in enumerate(doings)]


def pids(place: Path) -> list[int]:
    return [int(file.stem) for file in place.glob("*.pid")]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):  # the second if it goes between opening and reading
        return False
