"""One harness for faults: commands run undisturbed, then with a fault, then again to their end, and what they leave is compared.

A fault is a system call that fails (`failing_io`), a kill or a power cut at an event of the disk (`power_loss`), or signals at random
moments (`random_kills`). The commands are those of `stage_scenarios.PROGRAMMES`.
"""

import os
import re
import shlex
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Protocol

from tests.conftest import CommandResult, run_moeir
from tests.random_kills import Run, finish_runs
from tests.stage_scenarios import (
    PROGRAMMES,
    Scenario,
    check_end,
    read_if_present,
    refusal_of,
    run_command,
    run_earlier,
    working_folder,
    write_inputs,
)


class Fault(Protocol):
    """What disturbs a programme; `row` is its kind, for the table."""

    @property
    def row(self) -> str: ...

    def check(self, programme: "Programme") -> str | None:
        """Disturb the commands in a copy of the programme's folder, run them to their end and count that; what was wrong."""


class Programme:
    """Scenarios and what they leave when nothing fails, to compare with what they leave after a fault."""

    def __init__(self, name: str, folder: Path, inputs: Path, observe: Callable[[], AbstractContextManager[object]] = nullcontext) -> None:
        """`observe` is entered while the commands run undisturbed."""
        self.scenarios = PROGRAMMES[name]
        self.commands = [command for scenario in self.scenarios for command in scenario.commands]
        self.products = [product for scenario in self.scenarios for product in scenario.products]
        self.counts: Counter[tuple[str, str]] = Counter()
        self.refusals: list[str] = []
        self._folder, self._inputs, self.root = folder, inputs, Path(os.path.commonpath([folder, inputs]))
        write_inputs(inputs, [command for scenario in self.scenarios for command in scenario.all_commands])
        with working_folder(folder / "earlier", inputs):
            Path("out").mkdir()
            for scenario in self.scenarios:
                run_earlier(scenario)
            self.earlier, self.files_before = {path: read_if_present(path) for path in self.products}, list_files()
        with self.copy("whole"):
            with observe():
                for scenario in self.scenarios:
                    _run_undisturbed(scenario)
            self.expected, self.files_whole = {path: read_if_present(path) for path in self.products}, list_files()
            assert None not in self.expected.values()

    @contextmanager
    def copy(self, name: str) -> Iterator[None]:
        """Work in a copy of the folder as it is before the commands; it is removed afterwards."""
        shutil.copytree(self._folder / "earlier", self._folder / name, symlinks=True)
        with working_folder(self._folder / name, self._inputs):
            yield
        shutil.rmtree(self._folder / name)

    def check(self, faults: Iterable[Fault]) -> list[str]:
        """Run the commands with each fault and again; what was wrong, one line for each."""
        failures = []
        for fault in faults:
            with self.copy("disturbed"):
                problem = fault.check(self)
            if problem is not None:
                self.counts[fault.row, "failures"] += 1
                failures.append(f"{fault}: {problem}")
        return failures

    def check_products(self, products: Iterable[Path] | None = None, *, ended: bool = False, refusable: bool = False) -> str | None:
        """A product is whole: as these commands or, unless they have `ended`, those before made it. One that was there stays, and readers
        take it; `refusable`: they may refuse another."""
        for path in self.products if products is None else products:
            content, earlier = read_if_present(path), self.earlier[path]
            was_there = ended or earlier is not None
            if content is None:
                if was_there:
                    return f"{path}: it was there, and is lost"
            elif (refusal := refusal_of(path)) is not None:
                if was_there or not refusable:
                    return f"{path}: {'it was there, and ' if was_there else ''}is refused: {refusal}"
            elif content not in ([self.expected[path]] if ended else [self.expected[path], earlier]):
                return f"{path}: looks whole and is not"
        return None

    def run_again(self, *, max_refusals: int) -> str | None:
        """Run the commands to their end, and do what so many refusals say; what is wrong then."""
        existing, commands, position, refusals = set(map(str, Path("out").rglob("*"))), list(self.commands), 0, list[str]()
        while position < len(commands):
            result = run_command(commands[position])
            if result.code == 0:
                position += 1
                continue
            refusals.append(result.stderr)
            following = _follow_advice(result, commands, position)
            if following is None or len(refusals) > max_refusals:
                return f"{commands[position]}: the next run fails: {result.code} {result.stderr!r}"
            position = following
        self.refusals += refusals
        return check_end(self.expected, existing)

    def total(self, column: str) -> int:
        """The sum of a column of the table."""
        return sum(count for (_, name), count in self.counts.items() if name == column)


def _run_undisturbed(scenario: Scenario) -> None:
    if scenario.processes > 1:
        assert finish_runs([Run(scenario)]) is None
        return
    for command in scenario.commands:
        run_moeir(*shlex.split(command))


def list_files() -> set[Path]:
    """The files in the folder of products."""
    return {path for path in Path("out").rglob("*") if path.is_file()}


def _follow_advice(result: CommandResult, commands: list[str], position: int) -> int | None:
    """Do what a refusal says; the position of the command to go on with, None if that cannot be done."""
    errors = [line for line in result.messages if line.startswith("error: ")]
    if result.code not in (1, 2, 3, 4) or len(errors) != 1:
        return None
    if (again := re.search(r"run moeir (\S+) again|run the stage that ma(?:d|k)e|run the same command again", errors[0])) is not None:
        stages = [shlex.split(command)[0] for command in commands]
        position = stages.index(again[1]) if again[1] in stages else position
    elif "--force" not in errors[0] or "--force" in commands[position]:
        if "move it away" not in errors[0]:
            return None
        path = Path(errors[0].removeprefix("error: ").partition(": ")[0])
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        return position
    commands[position] = f"{commands[position].removesuffix(' --force')} --force"
    return position
