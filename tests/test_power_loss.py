"""Kills and power cuts at any event of a stage: the next run gives the undisturbed bytes or says what to do; nothing torn looks whole."""

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from moeir.artifacts import atomic_write, journals, manifests
from moeir.artifacts.unfinished import WorkFolder
from tests.power_loss import CUTS, KILL, Programme, State
from tests.stage_scenarios import SCENARIOS, write_inputs

SAMPLED = {"convert": 8, "search": 6, "fuse over another": 8, "encode": 8, "index of bm25": 8, "finetune": 6, "chain": 6}
SAMPLED |= {"update of an index": 6, "pretrain": 6, "rerank": 6}


def sample_states(programme: Programme, count: int) -> list[State]:
    """States chosen by seed: so many of lost contents or names, and half as many of kills."""
    rng, kills = random.Random(1), [state for state in programme.states if state.cut == KILL]
    lost = [state for state in programme.states if state.cut != KILL]
    return rng.sample(lost, min(count, len(lost))) + rng.sample(kills, min(count // 2, len(kills)))


@pytest.mark.parametrize("name", [*SAMPLED, *(pytest.param(name, marks=pytest.mark.torture) for name in SCENARIOS if name not in SAMPLED)])
@pytest.mark.parametrize("sampled", [True, pytest.param(False, marks=pytest.mark.torture)])
def test_a_stage_after_a_kill_or_a_power_cut_is_whole_or_refused(stage_inputs, tmp_path, record_property, name, sampled):
    if sampled and name not in SAMPLED:
        pytest.skip("torture checks all of its states")
    programme = Programme(name, tmp_path, stage_inputs)
    failures = programme.check(sample_states(programme, SAMPLED[name]) if sampled else programme.states)
    assert sum(state.lost for state in programme.states) > len(programme.states) // 4, "cuts lose something"
    if not sampled:
        record_property("faults", (name, programme.table()))
    assert failures == []


def fsync_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(atomic_write, "_fsync", lambda path: None)


def fsync_only_manifests(patch: pytest.MonkeyPatch) -> None:
    fsync = atomic_write._fsync
    patch.setattr(atomic_write, "_fsync", lambda path: fsync(path) if path.suffix == ".new" or path.is_dir() else None)


def compare_no_checksum(patch: pytest.MonkeyPatch) -> None:
    fsync_only_manifests(patch)
    patch.setattr(manifests, "first_mismatch", lambda files: None)


def rename_before_the_manifest(patch: pytest.MonkeyPatch) -> None:
    def commit(work: WorkFolder, path: Path, manifest: dict[str, object]) -> None:
        os.replace(work.partial, path)
        atomic_write.write_text_atomically(manifests.manifest_path(path), manifests.serialize_manifest(manifest))
        atomic_write.sync_file(path)

    patch.setattr(atomic_write, "_commit", commit)


def sync_no_journal(patch: pytest.MonkeyPatch) -> None:
    def flush(file: journals.AppendableText) -> int:
        file._file.flush()
        return file._file.tell()

    patch.setattr(journals._SyncedFile, "flush", flush)


def sync_no_name_of_a_journal(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(journals, "sync_file", atomic_write._fsync)


def keep_a_torn_manifest(patch: pytest.MonkeyPatch) -> None:
    remove = atomic_write._remove
    patch.setattr(atomic_write, "_remove", lambda *paths: remove(*(path for path in paths if path.name != "manifest.json.new")))


def read_the_last_manifest(patch: pytest.MonkeyPatch) -> None:
    beside = lambda path: path / "manifest.json" if path.is_dir() else WorkFolder(path).manifest_beside  # noqa: E731
    patch.setattr(manifests, "manifest_path", beside)


class Mutant(NamedTuple):
    """A change of the code, the scenario and the cut that show it, and what is wrong then."""

    mutate: Callable[[pytest.MonkeyPatch], None]
    scenario: str
    cut: str
    message: str


MUTANTS = {
    "no fsync": Mutant(fsync_nothing, "fuse", "any", "looks whole and is not"),
    "no fsync of products, no checksum": Mutant(compare_no_checksum, "init", "contents zero", "looks whole and is not"),
    "rename before manifest": Mutant(rename_before_the_manifest, "fuse", "contents torn", "looks whole and is not"),
    "no fsync of journals": Mutant(sync_no_journal, "encode", "any", "differs after the second run"),
    "no fsync of names": Mutant(sync_no_name_of_a_journal, "encode", "all lost", "but its journal has"),  # refused; otherwise nothing is
    "the successor's manifest": Mutant(read_the_last_manifest, "fuse over another", "any", "it was there, and is refused"),
    "a torn manifest stays": Mutant(keep_a_torn_manifest, "encode", "contents torn", "manifest.json.new: damaged"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_of_the_code_fails(stage_inputs, tmp_path, monkeypatch, name):
    mutant = MUTANTS[name]
    write_inputs(stage_inputs, SCENARIOS[mutant.scenario].all_commands)
    mutant.mutate(monkeypatch)
    programme = Programme(mutant.scenario, tmp_path, stage_inputs, {mutant.cut: CUTS[mutant.cut]})
    for state in reversed(programme.states):  # the last ones are those of the renames
        if any(mutant.message in problem for problem in programme.check([state]) + programme.refusals):
            return
    pytest.fail("no power cut shows the mutant")
