"""The n-th system call of a stage fails: one error line that says why, nothing left or harmed, and the next run is whole."""

import errno
import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from moeir.artifacts import atomic_write
from tests.failing_io import Programme, is_supported
from tests.stage_scenarios import SCENARIOS, write_inputs

pytestmark = pytest.mark.skipif(not is_supported(), reason="needs Linux on x86-64, and permission to filter system calls")
SAMPLED = {"convert": 6, "search": 4, "fuse over another": 8, "encode": 4, "finetune": 3}
SINGLE = [name for name, scenario in SCENARIOS.items() if len(scenario.commands) == 1]


@pytest.mark.parametrize("name", [*SAMPLED, *(pytest.param(name, marks=pytest.mark.torture) for name in SINGLE if name not in SAMPLED)])
@pytest.mark.parametrize("sampled", [True, pytest.param(False, marks=pytest.mark.torture)])
def test_a_stage_whose_call_fails_says_so_and_harms_nothing(stage_inputs, tmp_path, record_property, name, sampled):
    if sampled and name not in SAMPLED:
        pytest.skip("torture lets all of its calls fail")
    programme = Programme(name, tmp_path, stage_inputs)
    faults = programme.list_faults()
    failures = programme.check(random.Random(1).sample(faults, SAMPLED[name]) if sampled else faults)
    met, count = programme.total("faults"), SAMPLED[name] if sampled else len(faults)
    assert met > 0.9 * count, "threads may change the number of calls a little"
    if not sampled:
        record_property("faults", (name, programme.table()))
    assert failures == []


def remove_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(atomic_write, "_remove", lambda *paths: None)


def pass_over_fsync(patch: pytest.MonkeyPatch) -> None:
    fsync = atomic_write._fsync

    def pass_over(path: Path) -> None:
        try:
            fsync(path)
        except OSError:
            return

    patch.setattr(atomic_write, "_fsync", pass_over)


class Mutant(NamedTuple):
    """A change of the code, the scenario and the kind of call that show it, and what is wrong then."""

    mutate: Callable[[pytest.MonkeyPatch], None]
    scenario: str
    kind: str
    message: str


MUTANTS = {
    "nothing removed": Mutant(remove_nothing, "convert", "fsync", "leaves out/"),
    "errors of fsync ignored": Mutant(pass_over_fsync, "convert", "fsync", "passes over it"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_of_the_code_fails(stage_inputs, tmp_path, monkeypatch, name):
    mutant = MUTANTS[name]
    write_inputs(stage_inputs, SCENARIOS[mutant.scenario].all_commands)
    mutant.mutate(monkeypatch)
    programme = Programme(mutant.scenario, tmp_path, stage_inputs)
    faults = [fault for fault in programme.list_faults() if fault.kind == mutant.kind and fault.error == errno.EIO]
    assert any(mutant.message in problem for fault in reversed(faults) for problem in programme.check([fault]))
