"""Stages that are killed at random moments: nothing looks whole and is not, no process is left, and the next run ends in the same bytes."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from moeir.artifacts import atomic_write, manifests
from moeir.artifacts.unfinished import WorkFolder
from moeir.stages.base import Counts
from moeir.stages.fuse import Fuse
from tests import random_kills
from tests.random_kills import JOBS, Programme
from tests.stage_scenarios import SCENARIOS, write_inputs

KILLS = 300  # of each stage by `make torture`: so many by SIGKILL, and so many by the other two
SIGNALS = {"SIGKILL": (signal.SIGKILL,), "SIGTERM and Ctrl-C": (signal.SIGTERM, signal.SIGINT)}
SAMPLED = {"search into a folder": 4, "encode": 4, "finetune": 3, "fuse over another": 6, "two shards": 3, "two jobs of a chain": 3}


@pytest.mark.parametrize("name", SAMPLED)
def test_a_stage_killed_at_random_moments_ends_in_the_same_bytes(stage_inputs, tmp_path, name):
    programme = Programme(name, tmp_path, stage_inputs)
    assert programme.check(SAMPLED[name], seed=1) == []
    assert programme.counts["kills"] == SAMPLED[name]


@pytest.mark.torture
@pytest.mark.parametrize("signals", SIGNALS)
@pytest.mark.parametrize("name", JOBS)
def test_every_stage_killed_many_times_ends_in_the_same_bytes(stage_inputs, tmp_path, record_property, name, signals):
    programme = Programme(name, tmp_path, stage_inputs)
    failures = programme.check(KILLS, seed=2, signals=SIGNALS[signals])
    record_property("faults", (name, programme.table()))
    assert failures == [] and programme.counts["kills"] == KILLS


def commit_before_the_manifest(patch: pytest.MonkeyPatch) -> None:
    """The product has its name a while before its manifest is written."""

    def commit(work: WorkFolder, path: Path, manifest: dict[str, object]) -> None:
        os.replace(work.partial, path)
        time.sleep(0.1)
        atomic_write.write_text_atomically(manifests.manifest_path(path), manifests.serialize_manifest(manifest))

    patch.setattr(atomic_write, "_commit", commit)


def start_a_process_that_stays(patch: pytest.MonkeyPatch) -> None:
    work = Fuse.work

    def start_and_work(self: Fuse) -> Counts:
        subprocess.Popen(["sleep", "60"])
        time.sleep(0.2)
        return work(self)

    patch.setattr(Fuse, "work", start_and_work)


class Mutant(NamedTuple):
    """A change of the code, the jobs that show it, and what is wrong then."""

    mutate: Callable[[pytest.MonkeyPatch], None]
    jobs: str
    message: str


MUTANTS = {
    "manifest after the name": Mutant(commit_before_the_manifest, "fuse", "was not made by moeir"),
    "a process that stays": Mutant(start_a_process_that_stays, "fuse", "leaves processes after SIGTERM"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_of_the_code_fails(stage_inputs, tmp_path, monkeypatch, name):
    mutant = MUTANTS[name]
    monkeypatch.setattr(random_kills, "SECONDS_TO_END", 0.2)
    write_inputs(stage_inputs, SCENARIOS[mutant.jobs].all_commands)
    mutant.mutate(monkeypatch)
    programme = Programme(mutant.jobs, tmp_path, stage_inputs)
    assert any(mutant.message in problem for seed in range(5) for problem in programme.check(4 * (seed + 1), seed))
