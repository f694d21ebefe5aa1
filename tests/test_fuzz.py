"""A slice of the fuzzing of readers, and every input that once failed."""

import pytest

from tests import fuzz, fuzz_artifacts

TARGETS = fuzz.list_targets()


@pytest.mark.parametrize("name", TARGETS)
def test_whole_inputs_are_read_and_mutated_ones_are_read_or_refused(name, tmp_path):
    target, cases = TARGETS[name], 15 if name in fuzz_artifacts.READERS else 60
    with fuzz.bound_cases(tmp_path):
        outcomes = [fuzz.run_case(target, seed, tmp_path) for seed in target.seeds]
    assert set(outcomes) == {"accepted"} or (name == "detection" and "accepted" in outcomes)
    counts, failures = fuzz.fuzz(name, target, cases, 0, tmp_path)
    assert failures == []
    assert counts.total() == cases and counts["refused"]


@pytest.mark.torture
@pytest.mark.parametrize("name", TARGETS)
def test_many_mutated_inputs_are_read_or_refused(name, tmp_path):
    _, failures = fuzz.fuzz(name, TARGETS[name], 20_000, 1, tmp_path)
    fuzz.save_failures(name, failures)
    assert failures == []


@pytest.mark.parametrize("path", sorted(path for path in fuzz.INPUTS.rglob("*") if path.is_file()), ids=lambda path: path.name)
def test_inputs_that_once_failed(path, tmp_path):
    name = next(name for name in TARGETS if name.replace(" ", "_") == path.parent.name)
    with fuzz.bound_cases(tmp_path):
        assert fuzz.run_case(TARGETS[name], path.read_bytes(), tmp_path) in ("accepted", "refused")
