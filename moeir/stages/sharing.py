"""Run shards of a stage in worker processes on this machine; if one fails, all are stopped."""

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

LOOKING, LEAVING = 1.0, 10.0  # between checks for stuck workers; for a worker to exit before it is killed
AGAIN = "run the same command again; every shard resumes where it stopped"


@dataclass(frozen=True)
class Share:
    """A shard of a stage for one worker process: its name, number of texts, device and number of threads."""

    stage: Stage
    name: str
    device: str
    texts: int
    threads: int


@dataclass
class _Child:
    """A worker process: its job, the pipe of its messages, the texts it has finished, the time of its last progress."""

    share: Share
    process: BaseProcess
    words: Connection
    told: int = 0
    heard: float | None = None

    def __str__(self) -> str:
        return f"shard {self.share.name} on {self.share.device}: process {self.process.pid}"

    def end(self) -> str:
        """Why the process ended."""
        self.process.join(LEAVING)
        code = self.process.exitcode
        if code is not None and code < 0:
            return f"was killed ({signal.Signals(-code).name})"
        return f"exited with code {code}; see that process's log"


def carry_out(jobs: Sequence[Share], label: str, *, force: bool, minutes: float) -> None:
    """Run every job in a worker process; an error in one of them stops all and is raised here.

    A worker that has reported progress and then reports none for `stuck_minutes` is an error.
    """
    with _started(jobs, force=force) as workers, console.meter(label, sum(job.texts for job in jobs)) as counter:
        for count in _heard(workers, minutes):
            counter.advance(count)


@contextmanager
def _started(jobs: Sequence[Share], *, force: bool) -> Iterator[list[_Child]]:
    """Start the worker processes and terminate all at the end. Only the parent process handles Ctrl-C."""
    context = multiprocessing.get_context("spawn")
    workers: list[_Child] = []
    resource_tracker.ensure_running()  # started with the first worker, it would unblock the signal blocked for that
    try:
        for job in jobs:
            pipe, worker_pipe = context.Pipe(duplex=False)
            process = context.Process(target=_work, args=(job, job.stage.name, force, worker_pipe), daemon=True)
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # blocked here, and in the worker until it ignores it
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
    """Yield the number of newly finished texts until all workers are done."""
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
                message = worker.share.texts - worker.told  # texts finished by an earlier run
            worker.told += message
            yield message
        for worker in busy.values():
            if worker.heard is not None and time.monotonic() - worker.heard > minutes * 60:
                raise MoeirError(f"{worker} has made no progress for {minutes:g} minutes; {AGAIN}")


def _work(job: Share, name: str, force: bool, pipe: Connection) -> None:
    """The main function of a worker: run its job; send progress, an error or, at the end, None through the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    for variable in ("OMP_NUM_THREADS", "RAYON_NUM_THREADS"):  # before torch and tokenizers read them
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
    """Kill this worker when its parent process ends: nothing else would stop it."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGKILL)
