"""A slice of the fuzzing of readers, every input that once failed, and that the fuzzer finds what fails."""

import json
from pathlib import Path

import pytest

from moeir.errors import MoeirError
from tests import fuzz, fuzz_artifacts
from tests.fuzz import Target

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


def read_carelessly(path: Path) -> None:
    try:
        record = json.loads(path.read_bytes())
    except ValueError:
        raise MoeirError("no JSON") from None
    while record["depth"] != 1:
        pass


def test_the_fuzzer_finds_errors_and_loops_without_an_end_and_a_case_may_not_fill_the_memory(monkeypatch, tmp_path):
    monkeypatch.setattr(fuzz, "EXTRA_MEMORY", 1 << 30)
    with fuzz.bound_cases(tmp_path):
        assert fuzz.run_case(Target(lambda path: bytearray(4 << 30), "x", ()), b"", tmp_path).startswith("MemoryError")
    monkeypatch.setattr(fuzz, "SECONDS", 0.05)
    target = Target(read_carelessly, "x.json", (b'{"depth": 1}',))
    counts, failures = fuzz.fuzz("careless", target, 300, 0, tmp_path)
    messages = {message.split(":")[0] for message, _ in failures}
    assert counts["accepted"] and counts["refused"] and counts["failed"] and messages >= {"KeyError", "TypeError", "Hang"}
    assert fuzz.fuzz("careless", target, 300, 0, tmp_path)[1] == failures
