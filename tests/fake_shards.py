"""Fake shard jobs with a chosen behaviour; they import little, so that processes start quickly."""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from moeir import console
from moeir.errors import DataError
from moeir.settings import option
from moeir.stages import worker_pool
from moeir.stages.base import Stage


@dataclass(frozen=True, kw_only=True)
class FakeStage(Stage):
    """A stage with a chosen behaviour."""

    behaviour: str = option("What.", "")
    folder: str = option("Where.", "")

    def execute(self, *, force: bool) -> None:
        if self.behaviour != "ends":  # a process without progress reports is not waited for
            console.ProgressMeter("faking", 3).advance(2)
        Path(self.folder, f"{os.getpid()}.pid").touch()  # last: the test may kill the parent as soon as the file exists
        if self.behaviour == "fails":
            raise DataError("corpus.jsonl:7: broken")
        if self.behaviour == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.behaviour == "errs":
            raise ZeroDivisionError
        if self.behaviour == "sleeps":
            time.sleep(100)


def make_shard_jobs(folder: Path, *doings: str) -> list[worker_pool.ShardJob]:
    return [
        worker_pool.ShardJob(FakeStage(behaviour=does, folder=str(folder)), f"{row}/{len(doings)}", "cpu", 3, 1)
        for row, does in enumerate(doings)
    ]


def child_pids(folder: Path) -> list[int]:
    return [int(file.stem) for file in folder.glob("*.pid")]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):  # the second if it ends between opening and reading
        return False
