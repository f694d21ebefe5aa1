"""Shards of a stage made at once by processes of this machine, which the process of the command starts, shows, and stops if one fails."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import connection, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from moeir import console
from moeir.errors import MoeirError
from moeir.stages import base
from moeir.stages.base import Stage

LOOKING, LEAVING = 1.0, 10.0  # seconds between two looks at who is stuck; that a process gets to leave
AGAIN = "run the same command again, and every shard goes on where it stopped"


@dataclass(frozen=True)
class Share:
    """What one process does: a shard of a stage, called `name`, of so many texts, on a device, with so many threads."""

    stage: Stage
    name: str
    device: str
    texts: int
    threads: int


@dataclass
class _Child:
    """A process with its share: what it says, how many texts it has told of, when it last did."""

    share: Share
    process: BaseProcess
    words: Connection
    told: int = 0
    heard: float | None = None

    def __str__(self) -> str:
        return f"shard {self.share.name} on {self.share.device}: process {self.process.pid}"

    def end(self) -> str:
        """How it has ended."""
        self.process.join(LEAVING)
        code = self.process.exitcode
        if code is not None and code < 0:
            return f"was killed ({signal.Signals(-code).name})"
        return f"ended with code {code}, and its own last lines may say why"


def carry_out(jobs: Sequence[Share], label: str, *, force: bool, minutes: float) -> None:
    """Make every share in a process of its own; an error in one of them stops all, and is raised here.

    A process that tells of no text for so many minutes, once it has told of some, is given up.
    """
    with _started(jobs, force=force) as workers, console.meter(label, sum(job.texts for job in jobs)) as counter:
        for count in _heard(workers, minutes):
            counter.advance(count)


@contextmanager
def _started(jobs: Sequence[Share], *, force: bool) -> Iterator[list[_Child]]:
    """The processes; none is left behind. Ctrl-C is for the one that started them."""
    context = multiprocessing.get_context("spawn")
    workers: list[_Child] = []
    resource_tracker.ensure_running()  # started with the first process, it would let go of what is held back for that
    try:
        for job in jobs:
            pipe, worker_pipe = context.Pipe(duplex=False)
            process = context.Process(target=_work, args=(job, job.stage.name, force, worker_pipe), daemon=True)
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # held back here, and in the process until it ignores it
            try:
                process.start()
            finally:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            worker_pipe.close()
            workers.append(_Child(job, process, pipe))
        yield workers
    finally:
        for worker in workers:
            worker.process.terminate()
        for worker in workers:
            worker.process.join(LEAVING)
            worker.process.kill()


def _heard(workers: Sequence[_Child], minutes: float) -> Iterator[int]:
    """How many texts more are done, until all are."""
    busy = {worker.words: worker for worker in workers}
    while busy:
        for pipe in connection.wait(list(busy), LOOKING):
            worker = busy[pipe]  # type: ignore[index]
            try:
                message = worker.words.recv()
            except EOFError:
                raise MoeirError(f"{worker} {worker.end()}; {AGAIN}") from None
            if isinstance(message, Exception):
                raise message
            worker.heard = time.monotonic()
            if message is None:
                del busy[worker.words]
                message = worker.share.texts - worker.told  # what was there before
            worker.told += message
            yield message
        for worker in busy.values():
            if worker.heard is not None and time.monotonic() - worker.heard > minutes * 60:
                raise MoeirError(f"{worker} has told of no text for {minutes:g} minutes; {AGAIN}")


def _work(job: Share, name: str, force: bool, pipe: Connection) -> None:
    """The life of a process: its share, and what it has to say of it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    for variable in ("OMP_NUM_THREADS", "RAYON_NUM_THREADS"):  # before torch and tokenizers look at them
        os.putenv(variable, str(job.threads))
    type(job.stage).name = name
    console.start()
    console.tell(pipe.send)
    try:
        base.run(job.stage, force=force)
    except (MoeirError, OSError, MemoryError, RuntimeError) as problem:
        pipe.send(problem)
        return
    pipe.send(None)


def _leave_with_parent() -> None:
    """Nobody would hear or stop a process whose parent was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGKILL)
