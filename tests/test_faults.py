"""Stages whose system calls fail, that are killed, or that lose power: nothing torn looks whole, and the next run ends in the same bytes.

Of each kind of fault the plain run tries some, `make torture` all.
"""

import errno
import os
import random
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from moeir.artifacts import atomic_write, manifests
from moeir.artifacts.unfinished import WorkFolder
from tests.failing_io import ERRORS, FULL, list_failing_calls
from tests.faults import Fault, Programme
from tests.power_loss import CUTS, KILL, State, record_programme
from tests.random_kills import iterate_kills
from tests.stage_scenarios import PROGRAMMES, SCENARIOS, write_inputs

KILLS = 300  # of each programme by `make torture`: so many by SIGKILL, and so many by the other two
FAILING = {"convert": 6, "search": 4, "fuse over another": 8, "encode": 4, "finetune": 3, "pull": 6, "init in shards": 1}
LOST = {"convert": 8, "search": 6, "fuse over another": 8, "encode": 8, "index of bm25": 8, "finetune": 6, "chain": 6}
LOST |= {"index of several encodings": 6, "rerank": 6, "init in shards": 8, "pull": 6}
KILLED = {"search into a folder": 4, "finetune": 3, "fuse over another": 6, "two shards": 3, "pull": 6}


def sample(counts: Mapping[str, int], names: Iterable[str]) -> pytest.MarkDecorator:
    """Parametrise `name` and `count`: so many faults of some programmes, and with `make torture` all (None) of every one."""
    every = [pytest.param(name, None, marks=pytest.mark.torture) for name in names]
    return pytest.mark.parametrize(("name", "count"), [*counts.items(), *every])


pytestmark = pytest.mark.usefixtures("hub")  # which one of the programmes asks


@sample(FAILING, [name for name, scenario in SCENARIOS.items() if len(scenario.commands) == 1])
def test_failing_io_is_told_and_harms_nothing(stage_inputs, tmp_path, name, count):
    programme = Programme(name, tmp_path, stage_inputs)
    faults = list_failing_calls(programme)
    full = [fault for fault in faults if fault.kind == FULL]
    chosen = [*random.Random(1).sample(faults, count), *full] if count else faults
    failures = programme.check(chosen)
    assert failures == []
    assert programme.total("faults") > 0.9 * len(chosen)
    assert len(full) >= (4 if name == "init in shards" else 1), "each of several weight files"


@sample(LOST, SCENARIOS)
def test_a_stage_after_a_kill_or_power_loss_is_whole_or_refused(stage_inputs, tmp_path, name, count):
    programme, states = record_programme(name, tmp_path, stage_inputs)
    failures = programme.check(sample_states(states, count) if count else states)
    assert failures == []
    assert sum(state.lost for state in states) > len(states) // 4, "cuts lose something"


def sample_states(states: list[State], count: int) -> list[State]:
    """States chosen by seed: so many of lost contents or names, and half as many of kills."""
    rng, kills = random.Random(1), [state for state in states if state.row == KILL]
    lost = [state for state in states if state.row != KILL]
    return rng.sample(lost, min(count, len(lost))) + rng.sample(kills, min(count // 2, len(kills)))


@sample(KILLED, PROGRAMMES)
def test_random_kills_end_in_the_same_bytes(stage_inputs, tmp_path, name, count):
    programme = Programme(name, tmp_path, stage_inputs)
    if count:
        assert programme.check(iterate_kills(programme, count, seed=1)) == []
        return
    signals = ((signal.SIGKILL,), (signal.SIGTERM, signal.SIGINT))
    failures = [problem for own in signals for problem in programme.check(iterate_kills(programme, KILLS, 2, own))]
    assert failures == []


def omit_fsync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(atomic_write, "_fsync", lambda *_, **options: None)


def pass_over_fsync(patch: pytest.MonkeyPatch) -> None:
    fsync = atomic_write._fsync
    patch.setattr(atomic_write, "_fsync", lambda path, **_: fsync(path, raise_errors=False))


def compare_no_checksum(patch: pytest.MonkeyPatch) -> None:
    fsync = atomic_write._fsync  # of manifests alone
    patch.setattr(atomic_write, "_fsync", lambda path, **_: fsync(path) if path.suffix == ".new" or path.is_dir() else None)
    patch.setattr(manifests, "first_mismatch", lambda files: None)


def rename_before_the_manifest(patch: pytest.MonkeyPatch) -> None:
    def commit(work: WorkFolder, path: Path, manifest: dict[str, object]) -> None:
        os.replace(work.partial, path)
        time.sleep(0.1)
        atomic_write.write_text_atomically(manifests.manifest_path(path), manifests.serialize_manifest(manifest))
        atomic_write.sync_file(path)

    patch.setattr(atomic_write, "_commit", commit)


class Mutant(NamedTuple):
    """A change of the code, the scenario and the fault that show it (a kind of call, a cut, or kills), and what is wrong then."""

    mutate: Callable[[pytest.MonkeyPatch], None]
    scenario: str
    fault: str
    message: str


MUTANTS = {
    "errors of fsync ignored": Mutant(pass_over_fsync, "convert", "fsync", "passes over it"),
    "no fsync": Mutant(omit_fsync, "fuse", "any", "looks whole and is not"),
    "no fsync of products, no checksum": Mutant(compare_no_checksum, "init", "contents zero", "looks whole and is not"),
    "manifest after the name": Mutant(rename_before_the_manifest, "fuse", "kills", "was not made by moeir"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_of_the_code_fails(stage_inputs, tmp_path, monkeypatch, name):
    mutant = MUTANTS[name]
    write_inputs(stage_inputs, SCENARIOS[mutant.scenario].all_commands)  # by the code as it is
    mutant.mutate(monkeypatch)
    programme, states = record_programme(mutant.scenario, tmp_path, stage_inputs, {mutant.fault: CUTS.get(mutant.fault, CUTS[KILL])})
    faults: Iterable[Fault] = reversed(states)  # the last ones are those of the renames
    if mutant.fault in ERRORS:
        calls = list_failing_calls(programme)
        faults = reversed([call for call in calls if call.kind == mutant.fault and call.error == errno.EIO])
    elif mutant.fault == "kills":
        faults = (kills for seed in range(5) for kills in iterate_kills(programme, 4 * (seed + 1), seed))
    assert any(mutant.message in problem for fault in faults for problem in programme.check([fault]) + programme.refusals)
