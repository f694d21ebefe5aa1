"""A slice of the fuzzing of readers, every input that once failed, and that the fuzzer finds what fails."""

import json
import os
import signal
from pathlib import Path

import pytest

from moeir.errors import MoeirError
from tests import fuzz, fuzz_artifacts
from tests.fuzz import Target

TARGETS = fuzz.list_targets()


@pytest.mark.parametrize("name", TARGETS)
def test_mutated_inputs_are_read_or_refused(name):
    cases = 15 if name in fuzz_artifacts.READERS else 60
    counts, failures = fuzz.fuzz(name, TARGETS[name], cases, seed=0)
    assert failures == []
    assert counts.total() == cases and counts["refused"]


@pytest.mark.torture
@pytest.mark.parametrize("name", TARGETS)
def test_many_mutated_inputs_are_read_or_refused(name, record_property):
    counts, failures = fuzz.fuzz_in_child(name, TARGETS[name], 20_000, seed=1)
    record_property("faults", (name, {"mutated inputs": tuple(counts[column] for column in ("accepted", "refused", "failed"))}))
    fuzz.save_failures(name, failures)
    assert failures == []


@pytest.mark.parametrize("name", TARGETS)
def test_the_inputs_to_mutate_are_read(name, tmp_path):
    (tmp_path / "ids.txt").write_bytes(b"a\nb\n")
    with fuzz.bound_cases():
        outcomes = [fuzz.run_case(TARGETS[name], seed, tmp_path) for seed in TARGETS[name].seeds]
    assert set(outcomes) == {"accepted"} or (name == "detection" and "accepted" in outcomes)


@pytest.mark.parametrize("path", sorted(path for path in fuzz.INPUTS.rglob("*") if path.is_file()), ids=lambda path: path.name)
def test_inputs_that_once_failed(path, tmp_path):
    (tmp_path / "ids.txt").write_bytes(b"a\nb\n")
    name = next(name for name in TARGETS if name.replace(" ", "_") == path.parent.name)
    with fuzz.bound_cases():
        assert fuzz.run_case(TARGETS[name], path.read_bytes(), tmp_path) in ("accepted", "refused")


def read_carelessly(path: Path) -> None:
    try:
        record = json.loads(path.read_bytes())
    except ValueError:
        raise MoeirError("no JSON") from None
    while record["depth"] != 1:
        pass


def test_the_fuzzer_finds_errors_and_loops_without_an_end(monkeypatch):
    monkeypatch.setattr(fuzz, "SECONDS", 0.05)
    target = Target(read_carelessly, "x.json", (b'{"depth": 1}',))
    counts, failures = fuzz.fuzz("careless", target, 300, seed=0)
    messages = {message.split(":")[0] for message, _ in failures}
    assert counts["accepted"] and counts["refused"] and counts["failed"] and messages >= {"KeyError", "TypeError", "Hang"}
    assert fuzz.fuzz("careless", target, 300, seed=0)[1] == failures


def read_fatally(path: Path) -> None:
    content = path.read_bytes()
    if content[:1] == b"[":
        os.kill(os.getpid(), signal.SIGKILL)
    while content[:1] == b"(":
        pass


@pytest.fixture
def blocked_alarms():
    """The child inherits it: no timer ends a case of it."""
    earlier = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, earlier)


def test_a_process_that_ends_or_stays_is_a_failure_and_the_other_cases_are_run(blocked_alarms, monkeypatch):
    monkeypatch.setattr(fuzz, "SECONDS", 0.5)
    monkeypatch.setattr(fuzz, "TOKENS", (b"[", b"("))
    counts, failures = fuzz.fuzz_in_child("fatal", Target(read_fatally, "x", (b" ab",)), 60, seed=0)
    messages = {content[:1]: message for message, content in failures}
    assert messages == {b"[": "ends its process with -9", b"(": "does not end within 1.0 s, nor by a signal"}
    assert counts.total() == 60


def test_a_case_may_not_fill_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(fuzz, "EXTRA_MEMORY", 1 << 30)
    with fuzz.bound_cases():
        outcome = fuzz.run_case(Target(lambda path: bytearray(4 << 30), "x", ()), b"", tmp_path)
    assert outcome.startswith("MemoryError")
