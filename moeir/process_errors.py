"""Errors among the processes of one training: each is reported once, with the process that caused it.

A process that fails leaves its error in the store that all share and closes its connections, so that the others' collectives fail: they
find the error in the store, and the main process reports it. One that has left nothing was killed, or is stuck.
"""

import gc
import json
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NoReturn

import torch.distributed as dist

from moeir.errors import MoeirError, is_out_of_memory

SETUP_TIMEOUT = timedelta(days=7)  # reading texts before the first step may take any time
SECONDS_TO_REPORT = 10.0  # for the others to notice an error


class SharedError(MoeirError):
    """The error of another process, or of a collective."""

    def __init__(self, message: str, exit_code: int = 1) -> None:  # unpickled from its message alone
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]


@dataclass(frozen=True)
class Processes:
    """Processes of which this one is `rank` of `size`; `names` has host and process id of each.

    `connections`: "host", and "device" for tensors on CUDA. Processes wait for one another until `timeout`; `store` has their errors.
    """

    rank: int = 0
    size: int = 1
    names: tuple[str, ...] = ("this process",)
    timeout: timedelta = SETUP_TIMEOUT
    store: Any = None
    connections: dict[str, Any] = field(default_factory=dict, compare=False)

    @property
    def is_main(self) -> bool:
        """Whether this is the process that writes files and logs."""
        return self.rank == 0

    @contextmanager
    def error_barrier(self) -> Iterator[None]:
        """An error of one process in this block ends all processes, and is reported once."""
        try:
            yield
        except (MoeirError, OSError) as error:
            if self.size > 1 and not isinstance(error, SharedError):
                self._leave(error)
                if not self.is_main:
                    raise SystemExit(getattr(error, "exit_code", 1)) from None
            raise

    @contextmanager
    def watch(self, moment: str) -> Iterator[None]:
        """Report the process that makes a collective in this block fail; an error of this process passes."""
        try:
            yield
        except RuntimeError as error:
            if is_out_of_memory(error) or not (isinstance(error, dist.DistError) or "gloo" in str(error)):
                raise
            self._report_lost(moment, self.timeout.total_seconds() if "imed out" in str(error) else SECONDS_TO_REPORT)

    def _report_lost(self, moment: str, seconds: float) -> NoReturn:
        """In the main process, raise the error that another has left, or that of the first to leave nothing within so many seconds."""
        deadline = time.monotonic() + seconds
        waited = f"has terminated or did not respond within {self.timeout.total_seconds() / 60:g} minutes; see the log of that process"
        with suppress(dist.DistError):  # the store goes with the main process
            self.store.set(str(self.rank), json.dumps(["", 1]))
            while True:
                marks = {rank: json.loads(self.store.get(str(rank))) for rank in range(self.size) if self.store.check([str(rank)])}
                for rank, (message, code) in marks.items():
                    if message:
                        self._exit(f"{self._describe(rank)}: {message}", code)
                lost = [self._describe(rank) for rank in range(self.size) if rank not in marks]
                if len(lost) < 2 or not self.is_main or time.monotonic() > deadline:
                    self._exit(f"{moment}: {lost[0] if lost else 'a connection'} {waited}")
                time.sleep(0.05)
        raise SharedError(f"{moment}: {self._describe(0)} {waited}")

    def _describe(self, rank: int) -> str:
        return f"process {rank} of {self.size} ({self.names[rank]})"

    def _leave(self, error: Exception) -> None:
        """Leave an error in the store and close all connections, so that the others' collectives fail; wait until they have noticed."""
        with suppress(dist.DistError):  # there is no store without the main process
            self.store.set(str(self.rank), json.dumps([str(error) or type(error).__name__, getattr(error, "exit_code", 1)]))
            problem: BaseException | None = error
            while problem is not None:
                traceback.clear_frames(problem.__traceback__)  # which hold connections
                problem = problem.__context__
            self.connections.clear()
            dist.destroy_process_group()
            gc.collect()
            self.store.wait([str(rank) for rank in range(self.size)] if self.is_main else ["0"], timedelta(seconds=SECONDS_TO_REPORT))

    def _exit(self, message: str, code: int = 1) -> NoReturn:
        """Raise the error in the main process; the other processes exit."""
        if not self.is_main:
            raise SystemExit(code)
        raise SharedError(message, code)
