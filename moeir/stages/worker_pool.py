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

POLL_SECONDS, EXIT_SECONDS = 1.0, 10.0  # between checks for stuck workers; for a worker to exit before it is killed
RESUME_HINT = "run the same command again; every shard resumes where it stopped"


@dataclass(frozen=True)
class ShardJob:
    """A shard of a stage for one worker process: its name, number of texts, device and number of threads."""

    stage: Stage
    name: str
    device: str
    texts: int
    threads: int


@dataclass
class _Worker:
    """A worker process: its job, the pipe of its messages, the texts it has finished, the time of its last progress."""

    job: ShardJob
    process: BaseProcess
    pipe: Connection
    texts_done: int = 0
    last_progress: float | None = None

    def __str__(self) -> str:
        return f"shard {self.job.name} on {self.job.device}: process {self.process.pid}"

    def exit_reason(self) -> str:
        """Why the process ended."""
        self.process.join(EXIT_SECONDS)
        code = self.process.exitcode
        if code is not None and code < 0:
            return f"was killed ({signal.Signals(-code).name})"
        return f"exited with code {code}; see that process's log"


def run_shards(jobs: Sequence[ShardJob], label: str, *, force: bool, stuck_minutes: float) -> None:
    """Run every job in a worker process; an error in one of them stops all and is raised here.

    A worker that has reported progress and then reports none for `stuck_minutes` is an error.
    """
    with _start_workers(jobs, force=force) as workers, console.meter(label, sum(job.texts for job in jobs)) as counter:
        for count in _progress_events(workers, stuck_minutes):
            counter.advance(count)


@contextmanager
def _start_workers(jobs: Sequence[ShardJob], *, force: bool) -> Iterator[list[_Worker]]:
    """Start the worker processes and terminate all at the end. Only the parent process handles Ctrl-C."""
    context = multiprocessing.get_context("spawn")
    workers: list[_Worker] = []
    resource_tracker.ensure_running()  # started with the first worker, it would unblock the signal blocked for that
    try:
        for job in jobs:
            pipe, worker_pipe = context.Pipe(duplex=False)
            process = context.Process(target=_worker_main, args=(job, force, worker_pipe), daemon=True)
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # blocked here, and in the worker until it ignores it
            try:
                process.start()
            finally:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            worker_pipe.close()
            workers.append(_Worker(job, process, pipe))
        yield workers
    finally:
        for worker in workers:
            worker.process.terminate()
        for worker in workers:
            worker.process.join(EXIT_SECONDS)
            worker.process.kill()


def _progress_events(workers: Sequence[_Worker], minutes: float) -> Iterator[int]:
    """Yield the number of newly finished texts until all workers are done."""
    busy = {worker.pipe: worker for worker in workers}
    while busy:
        for pipe in connection.wait(list(busy), POLL_SECONDS):
            worker = busy[pipe]  # type: ignore[index]
            try:
                message = worker.pipe.recv()
            except EOFError:
                raise MoeirError(f"{worker} {worker.exit_reason()}; {RESUME_HINT}") from None
            if isinstance(message, Exception):
                raise message
            worker.last_progress = time.monotonic()
            if message is None:
                del busy[worker.pipe]
                message = worker.job.texts - worker.texts_done  # texts finished by an earlier run
            worker.texts_done += message
            yield message
        for worker in busy.values():
            if worker.last_progress is not None and time.monotonic() - worker.last_progress > minutes * 60:
                raise MoeirError(f"{worker} has made no progress for {minutes:g} minutes; {RESUME_HINT}")


def _worker_main(job: ShardJob, force: bool, pipe: Connection) -> None:
    """The main function of a worker: run its job; send progress, an error or, at the end, None through the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    for variable in ("OMP_NUM_THREADS", "RAYON_NUM_THREADS"):  # before torch and tokenizers read them
        os.putenv(variable, str(job.threads))
    console.configure_logging()
    console.forward_progress(pipe.send)
    try:
        base.run_stage(job.stage, force=force)
    except (MoeirError, OSError, MemoryError, RuntimeError) as problem:
        pipe.send(problem)
        return
    pipe.send(None)


def _exit_with_parent() -> None:
    """Kill this worker when its parent process ends: nothing else would stop it."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGKILL)
