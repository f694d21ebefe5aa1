import logging

import pytest

from moeir import console


@pytest.fixture(autouse=True)
def configured(monkeypatch):
    monkeypatch.setattr(console, "_quiet", False)
    console.configure_logging()


def test_a_log_line_goes_to_stderr_once_and_stays_a_line(capsys):
    console.configure_logging()  # again
    logging.getLogger("moeir.some.package").info("read %s", "a\nb\x1b]0;title\x07")
    logging.getLogger("moeir.some.package").debug("not this")
    assert capsys.readouterr() == ("", "read a\\nb\\x1b]0;title\\x07\n")


def test_other_ranks_say_errors_only(capsys, monkeypatch):
    monkeypatch.setattr(console, "SECONDS_BETWEEN_LINES", 0.0)
    console.silence()
    logging.getLogger("moeir").info("hidden")
    logging.getLogger("moeir").error("shown")
    list(console.progress(range(3), "counting"))
    assert capsys.readouterr().err == "shown\n"


def test_without_a_terminal_progress_is_a_line_now_and_then(capsys, monkeypatch):
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr(console.time, "monotonic", lambda: float(next(clock)))
    assert list(console.progress([*"abcdefgh"], "reading")) == [*"abcdefgh"]
    lines = capsys.readouterr().err.splitlines()
    assert lines and all(line.startswith("reading: ") and " of 8, " in line and " s each, " in line and "left" in line for line in lines)
    assert len(lines) < 8


def test_a_meter_says_how_far_and_how_fast_and_what_else(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    meter = console.ProgressMeter("training", 100)
    now[0] = 10.0
    meter.advance(20, "loss 0.5")
    assert meter.format_line() == "training: 20 of 100, 2.0/s, 40 s left, loss 0.5"
    assert console.ProgressMeter("reading", None).format_line() == "reading: 0, 0.0/s"
