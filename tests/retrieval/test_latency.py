"""Latencies and threads."""

import numba
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

from moeir.kernels import numba_cache  # noqa: F401 - counts the seconds of compiling, and sets the threading layer
from moeir.retrieval import latency


@given(some.lists(some.integers(1, 9).map(float), min_size=1, max_size=8))
def test_so_many_percent_of_the_queries_wait_no_longer(seconds: list[float]) -> None:
    waits = sorted(seconds)
    for percent in (1, 50, 95, 99, 100):
        expected = next(wait for wait in waits if 100 * sum(other <= wait for other in waits) >= percent * len(waits))
        assert latency.latency_percentiles(seconds, (percent,)) == [expected]


def test_steps_are_told_apart_and_one_query_has_no_percentiles() -> None:
    recorder = latency.LatencyRecorder()
    recorder.steps = {"encode": [(0.5, 10), (0.25, 5)], "search": [(1.0, 1)], "fuse": [(0.5, 1), (0.25, 1)]}
    facts = recorder.speed()
    assert facts["encode"] == {"queries_per_second": 20.0, "seconds": 0.75, "batches": 2}
    percentiles = {"p50_ms": 250.0, "p95_ms": 500.0, "p99_ms": 500.0}
    assert facts["fuse"] == {"queries_per_second": 2.667, "seconds": 0.75, "batches": 2} | percentiles
    assert latency.format_speed(facts) == (
        "encode 20.0 queries/s, 2 batches of 375.00 ms on average; search 1.0 queries/s, one batch in 1,000.00 ms; "
        "fuse 2.7 queries/s, p50 250.00 ms, p95 500.00 ms, p99 500.00 ms"
    )


def test_compiling_a_loop_at_its_first_call_is_no_latency() -> None:
    @numba.njit
    def added(left: float, right: float) -> float:
        return left + right

    recorder = latency.LatencyRecorder()
    for _ in range(2):
        with recorder.time_step("search", 1):
            assert added(1.0, 2.0) == 3.0
    (first, _), (second, _) = recorder.steps["search"]
    assert recorder.compile_seconds > first
    assert second < recorder.compile_seconds
    speed = recorder.speed()
    assert speed["compile_seconds"] == pytest.approx(recorder.compile_seconds, abs=0.01)
    assert latency.format_speed(speed).endswith(f"; not counted: {speed['compile_seconds']:,.1f} s of compiling loops, once")
    assert "compiling" not in latency.format_speed(latency.LatencyRecorder().speed())


def test_threads_are_as_before_afterwards() -> None:
    before = torch.get_num_threads(), numba.get_num_threads()
    for limit, inside in ((1, (1, 1)), (None, before)):
        with latency.limit_threads(limit):
            assert (torch.get_num_threads(), numba.get_num_threads()) == inside
        assert (torch.get_num_threads(), numba.get_num_threads()) == before


def test_a_device_has_finished_before_the_clock_is_read(monkeypatch):
    synchronized = []
    monkeypatch.setattr("torch.cuda.synchronize", synchronized.append)
    for device in ("cpu", "cuda:1"):
        with latency.LatencyRecorder(device).time_step("search", 1):
            pass
    assert synchronized == ["cuda:1", "cuda:1"]
