"""Signals at random moments: a command is killed, several times, and run again to the end.

A run is a forked child with a process group of its own; the processes that a stage starts belong to that group. SIGKILL and SIGTERM go
to the main process or to the whole group, Ctrl-C to the whole group, as from a terminal. The scenarios of a programme run side by side:
two shards, or the processes of a distributed training, which end together, as under torchrun.
"""

import os
import random
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.kill_points import fork
from tests.processes import free_port, reset_process_state
from tests.stage_scenarios import Scenario, check_end, run_command

if TYPE_CHECKING:
    from tests.faults import Programme

SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
MAX_KILLS = 3  # of one product
SECONDS_TO_END, SECONDS_OF_A_RUN = 30.0, 300.0
STOPPED = 130


class Run:
    """The child processes of a scenario, in a process group."""

    def __init__(self, scenario: Scenario) -> None:
        sys.stdout.flush()
        self.scenario, self._messages = scenario, Path(f"stderr-{len(list(Path().glob('stderr-*')))}")
        self._messages.touch()
        self._port, self._group, self.codes = free_port() if scenario.processes > 1 else 0, 0, dict[int, int | None]()
        for rank in range(scenario.processes):
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until the child can take it
            child = fork(lambda rank=rank: self._run_commands(rank))
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            self._group = self._group or child
            with suppress(OSError):  # the child does it, too; whoever is first
                os.setpgid(child, self._group)
            self.codes[child] = None

    def _run_commands(self, rank: int) -> int:
        try:
            os.setpgid(0, self._group)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            if self.scenario.processes > 1:
                size = self.scenario.processes
                world = {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "RANK": rank, "LOCAL_RANK": rank}
                world |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": self._port}
                os.environ |= {name: str(value) for name, value in world.items()}
                reset_process_state()
            for command in self.scenario.commands:
                if (result := run_command(command)).code:
                    self._messages.write_text(result.stderr)
                    return result.code
        except KeyboardInterrupt:  # before or after the command
            return STOPPED
        except SystemExit as end:  # another process failed
            return end.code if isinstance(end.code, int) else 1
        return 0

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
        is_distributed = self.scenario.processes > 1
        with suppress(ProcessLookupError):
            if number == signal.SIGINT or rng.random() < 0.5:
                os.killpg(self._group, number)
            else:
                os.kill(rng.choice(list(self.codes)), number)
                if is_distributed:  # as torchrun does
                    while not self.has_ended() and set(self.codes.values()) == {None}:
                        time.sleep(0.002)
                    os.killpg(self._group, signal.SIGTERM)
        if not self.wait(SECONDS_TO_END):
            return f"goes on after {number.name}"
        began = time.monotonic()
        with suppress(ProcessLookupError):
            while time.monotonic() - began < SECONDS_TO_END:
                os.killpg(self._group, 0)  # processes that the stage started
                time.sleep(0.01)
            return f"leaves processes after {number.name}"
        expected = {0, STOPPED, -number, *((1, -signal.SIGTERM) if is_distributed else ())}
        stderr = self.read_messages()
        if not expected.issuperset(self.codes.values()) or "Traceback" in stderr or "this is a bug" in stderr:
            return f"ends with {sorted(map(str, self.codes.values()))} after {number.name}: {stderr!r}"
        return None

    def read_messages(self) -> str:
        """What a command that failed has written to stderr."""
        return self._messages.read_text()


def finish_runs(runs: Iterable[Run]) -> str | None:
    """Wait for the end of all runs, each with exit code 0; what was wrong."""
    if not all([run.wait(SECONDS_OF_A_RUN) for run in runs]):
        return "does not end"
    return next((f"ends with {run.codes}: {run.read_messages()!r}" for run in runs if any(run.codes.values())), None)


class Kills(NamedTuple):
    """At most so many kills of runs, each by one of the signals, at random moments of a programme that takes so many seconds."""

    kills: int
    seconds: float
    signals: Sequence[signal.Signals]
    rng: random.Random

    @property
    def row(self) -> str:
        """The signals."""
        return ", ".join(sorted({one.name for one in self.signals}))

    def check(self, programme: "Programme") -> str | None:
        """Start the commands, kill and start them again, and wait for their end."""
        runs = [Run(scenario) for scenario in programme.scenarios]
        for _ in range(self.kills):
            moment = time.monotonic() + self.rng.uniform(0, self.seconds)
            while (living := [position for position, run in enumerate(runs) if not run.has_ended()]) and time.monotonic() < moment:
                time.sleep(0.002)
            if not living:
                break
            position = self.rng.choice(living)
            run = runs[position]
            problem = run.send(self.rng.choice(self.signals), self.rng)
            programme.counts[self.row, "faults"] += any(run.codes.values())
            if problem := problem or programme.check_products(run.scenario.products):
                for other in runs:
                    other.wait(0)
                return problem
            runs[position] = Run(run.scenario)
        return finish_runs(runs) or check_end(programme.expected)


def iterate_kills(programme: "Programme", kills: int, seed: int, signals: Sequence[signal.Signals] = SIGNALS) -> Iterator[Kills]:
    """Kills of products until so many runs were ended by one of the signals."""
    with programme.copy("timed"):
        began = time.monotonic()
        assert finish_runs([Run(scenario) for scenario in programme.scenarios]) is None
        seconds = time.monotonic() - began
    rng, killed_before = random.Random(seed), programme.total("faults")
    while (remaining := killed_before + kills - programme.total("faults")) > 0:
        yield Kills(min(MAX_KILLS, remaining), seconds, signals, rng)
