"""Stages killed at random moments, several times, and run again to the end: do they leave the bytes of an undisturbed run?

A run is a forked child with a process group of its own; the processes that a stage starts belong to that group. SIGKILL and SIGTERM go
to the main process or to the whole group, Ctrl-C to the whole group, as from a terminal. Jobs run side by side: two shards, two parts of a
chain of which the second waits for the files of the first, or the processes of a distributed training, which end together, as under
torchrun.
"""

import os
import random
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tests.processes import free_port, reset_process_state
from tests.stage_scenarios import (
    BM25,
    CORPUS,
    ENCODE,
    EXAMPLES,
    SCENARIOS,
    SEARCH,
    TRAINING,
    Scenario,
    check_end,
    read_if_present,
    refusal_of,
    run_command,
    run_earlier,
    working_copy,
    working_folder,
    write_inputs,
)

SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
MAX_KILLS = 3  # of one product
SECONDS_TO_END, SECONDS_OF_A_RUN = 30.0, 300.0
SOURCE_IS_MISSING = (3, 4)  # exit codes of a command whose source is not there yet
STOPPED = 130


class Job(NamedTuple):
    """Commands in their order, in several processes if it is a distributed training; `waits` for files that another job makes."""

    scenario: Scenario
    processes: int = 1
    waits: bool = False

    @property
    def products(self) -> list[Path]:
        """The paths that the commands write to; the shards of several processes that encode."""
        shards = ("0-of-2", "1-of-2") if self.scenario.commands[0].startswith("encode") and self.processes == 2 else ("",)
        return [path / shard for path in self.scenario.products for shard in shards]


LONG_ENCODE = ENCODE.replace(CORPUS, "--corpus in/long.jsonl")
DISTRIBUTED = f"finetune {TRAINING} {EXAMPLES} --steps 3 --device cpu --output out/trained"
AFTER_BM25 = (
    "fuse --run out/bm25.trec --run in/came.trec --method rrf --output out/fused.trec",
    "evaluate --run out/fused.trec --qrels in/toy/test-qrels.tsv --output out/table.txt",
)
JOBS = {name: (Job(scenario),) for name, scenario in SCENARIOS.items()} | {
    "two shards": (Job(Scenario((f"{ENCODE} --shard 0/2",))), Job(Scenario((f"{ENCODE} --shard 1/2",)))),
    "two jobs of a chain": (
        Job(Scenario((BM25, f"{SEARCH} --index out/bm25 --output out/bm25.trec"))),
        Job(Scenario(AFTER_BM25), waits=True),
    ),
    "encode in two processes": (Job(Scenario((f"{LONG_ENCODE} --device cpu",)), processes=2),),
    "distributed training": (Job(Scenario((DISTRIBUTED,)), processes=2),),
}


class Run:
    """The child processes of a job, in a process group."""

    def __init__(self, job: Job, messages: Path) -> None:
        self.job, self._messages = job, messages
        self._port, self._group, self.codes = free_port() if job.processes > 1 else 0, 0, dict[int, int | None]()
        for rank in range(job.processes):
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until the child can take it
            child = os.fork()
            if child == 0:
                try:
                    self._run_commands(rank)
                finally:
                    os._exit(70)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            self._group = self._group or child
            with suppress(OSError):  # the child does it, too; whoever is first
                os.setpgid(child, self._group)
            self.codes[child] = None

    def _run_commands(self, rank: int) -> None:
        code = 70
        try:
            os.setpgid(0, self._group)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            if self.job.processes > 1:
                world = {"WORLD_SIZE": self.job.processes, "LOCAL_WORLD_SIZE": self.job.processes, "RANK": rank, "LOCAL_RANK": rank}
                world |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": self._port}
                os.environ |= {name: str(value) for name, value in world.items()}
                reset_process_state()
            code = 0
            for command in self.job.scenario.commands:
                while (result := run_command(command)).code in SOURCE_IS_MISSING and self.job.waits:
                    time.sleep(0.05)
                if result.code:
                    code = result.code
                    self._messages.write_text(result.stderr)
                    break
        except KeyboardInterrupt:  # before or after the command
            code = STOPPED
        except SystemExit as end:  # another process failed
            code = end.code if isinstance(end.code, int) else 1
        except BaseException:  # noqa: BLE001 - nothing of the child may run the parent's tests
            self._messages.write_text(traceback.format_exc())
        finally:
            os._exit(code)

    def has_ended(self) -> bool:
        """Whether all processes have ended."""
        for child in [child for child, code in self.codes.items() if code is None]:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                self.codes[child] = os.waitstatus_to_exitcode(status)
        return None not in self.codes.values()

    def wait(self, seconds: float) -> bool:
        """Wait for all processes; false, and all are killed, if they need longer."""
        began = time.monotonic()
        while not self.has_ended():
            if time.monotonic() - began > seconds:
                os.killpg(self._group, signal.SIGKILL)
                self.wait(SECONDS_TO_END)
                return False
            time.sleep(0.002)
        return True

    def send(self, number: signal.Signals, rng: random.Random) -> str | None:
        """Send a signal and wait for the end of all processes; what was wrong."""
        with suppress(ProcessLookupError):
            if number == signal.SIGINT or rng.random() < 0.5:
                os.killpg(self._group, number)
            else:
                os.kill(rng.choice(list(self.codes)), number)
                if self.job.processes > 1:  # as torchrun does
                    self._wait_for_one()
                    os.killpg(self._group, signal.SIGTERM)
        if not self.wait(SECONDS_TO_END):
            return f"goes on after {number.name}"
        began = time.monotonic()
        while self._group_lives():  # processes that the stage started
            if time.monotonic() - began > SECONDS_TO_END:
                return f"leaves processes after {number.name}"
            time.sleep(0.01)
        return self._check_codes(number)

    def _wait_for_one(self) -> None:
        while not self.has_ended() and set(self.codes.values()) == {None}:
            time.sleep(0.002)

    def _group_lives(self) -> bool:
        try:
            os.killpg(self._group, 0)
        except ProcessLookupError:
            return False
        return True

    def _check_codes(self, number: signal.Signals) -> str | None:
        expected = {0, STOPPED, -number, *((1, -signal.SIGTERM) if self.job.processes > 1 else ())}
        stderr = self.messages()
        if not expected.issuperset(self.codes.values()) or "Traceback" in stderr or "this is a bug" in stderr:
            return f"ends with {sorted(map(str, self.codes.values()))} after {number.name}: {stderr!r}"
        return None

    def messages(self) -> str:
        """What a command that failed has written to stderr."""
        return self._messages.read_text() if self._messages.exists() else ""


class Programme:
    """Jobs and what they leave undisturbed, to compare with what they leave after kills."""

    def __init__(self, name: str, folder: Path, inputs: Path) -> None:
        self._jobs, self._folder, self._inputs = JOBS[name], folder, inputs
        self._products = [product for job in self._jobs for product in job.products]
        self.counts: Counter[str] = Counter()
        write_inputs(inputs, [command for job in self._jobs for command in job.scenario.all_commands])
        with working_folder(folder / "earlier", inputs):
            Path("out").mkdir()
            for job in self._jobs:
                run_earlier(job.scenario)
            self._earlier = {product: read_if_present(product) for product in self._products}
        with working_copy(self._folder, "whole", self._inputs):
            self._import_modules()
            began = time.monotonic()
            assert self._finish([self._start(job) for job in self._jobs]) is None
            self._seconds = time.monotonic() - began
            self._expected = {product: read_if_present(product) for product in self._products}
            assert None not in self._expected.values() and check_end(self._expected) is None

    def _import_modules(self) -> None:
        """Import what the commands need into this process; those that start processes would share its threads."""
        with working_copy(self._folder, "imported", self._inputs):
            for job in self._jobs:
                if job.processes == 1 and not job.waits:
                    for command in job.scenario.commands:
                        assert run_command(command).code == 0

    def _start(self, job: Job) -> Run:
        sys.stdout.flush()
        return Run(job, Path(f"stderr-{len(list(Path().glob('stderr-*')))}"))

    def check(self, kills: int, seed: int, signals: Sequence[signal.Signals] = SIGNALS) -> list[str]:
        """Kill jobs until `kills` runs were ended by one of the signals; what was wrong, one line for each product."""
        rng, failures = random.Random(seed), []
        while self.counts["kills"] < kills:
            with working_copy(self._folder, "killed", self._inputs):
                problem = self._kill_and_finish(rng, min(MAX_KILLS, kills - self.counts["kills"]), signals)
            self.counts["products"] += 1
            if problem is not None:
                self.counts["failures"] += 1
                failures.append(problem)
        return failures

    def _kill_and_finish(self, rng: random.Random, kills: int, signals: Sequence[signal.Signals]) -> str | None:
        runs = [self._start(job) for job in self._jobs]
        for _ in range(kills):
            moment = time.monotonic() + rng.uniform(0, self._seconds)
            while (living := [position for position, run in enumerate(runs) if not run.has_ended()]) and time.monotonic() < moment:
                time.sleep(0.002)
            if not living:
                break
            position, number = rng.choice(living), rng.choice(signals)
            run = runs[position]
            problem = run.send(number, rng)
            self.counts["kills"] += any(run.codes.values())
            self.counts[number.name] += any(run.codes.values())
            if problem := problem or self._check_products(run.job.products):
                for other in runs:
                    other.wait(0)
                return problem
            runs[position] = self._start(run.job)
        return self._finish(runs) or check_end(self._expected)

    def _finish(self, runs: list[Run]) -> str | None:
        """Wait for the end of all jobs, each with exit code 0."""
        ended = [run.wait(SECONDS_OF_A_RUN) for run in runs]
        if not all(ended):
            return "does not end"
        return next((f"ends with {run.codes}: {run.messages()!r}" for run in runs if any(run.codes.values())), None)

    def _check_products(self, products: list[Path]) -> str | None:
        """A product that is there after a kill is whole: the earlier one or the one that the command makes."""
        for product in products:
            content = read_if_present(product)
            if content not in (self._earlier[product], self._expected[product]):
                return f"{product}: looks whole after a kill and is not"
            if content is not None and (refusal := refusal_of(product)):
                return f"{product}: refused after a kill: {refusal}"
        return None

    def table(self) -> dict[str, tuple[int, ...]]:
        """Kills by signal, products and failures."""
        return {"random moments": tuple(self.counts[one] for one in ("SIGKILL", "SIGTERM", "SIGINT", "kills", "products", "failures"))}
