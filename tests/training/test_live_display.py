"""The live display: its lines for each kind of training, at any width, and a terminal that is restored afterwards."""

import fcntl
import io
import logging
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time

import pytest

from moeir import console
from moeir.analysis import training_monitor
from moeir.console import ProgressMeter
from moeir.training import live_display

CAME = {"loss": 3.0, "gradient_norm": 1.5, "learning_rate": 1e-5, "tokens": 100, "seconds": 0.1, "competing": 1.0, "entropy.shares": 1.0}
CAME |= {f"{kind}.{name}": value for kind, value in (("share", 0.25), ("wins", 0.3), ("loss", 1.0)) for name in ("lexical", "local")}
ROUTED = {"loss": 2.0, "loss.global": 2.0, "entropy.gate": 0.5, "usage.gate.0": 0.75, "usage.gate.1": 0.25, "usage.gate.2": 0.0}
PRETRAINED = {"loss": 4.0, "loss.mlm": 4.0, "accuracy.mlm": 0.125, "tokens": 64, "seconds": 0.5}
CONTRASTIVE = {"loss": 2.0, "loss.lexical": 1.5, "loss.an_expert_of_a_long_name": 0.5}
DEVELOPED = {"loss": 2.0, "loss.global": 2.0, "dev.fused.nDCG@10": 0.5}


def rendered_lines(facts, width=60, height=40, steps=20, done=20):
    monitor = training_monitor.replay({"step": step, **facts} for step in range(1, steps + 1))
    meter = ProgressMeter("training", 100, done=0)
    meter.done = done
    return ["".join(words for words, _ in line) for line in live_display.render_lines(monitor, meter, width, height)]


def test_a_competition_shows_shares_losses_and_how_long_still():
    lines = rendered_lines(CAME)
    assert lines[0].startswith("training ━") and " 20 of 100, " in lines[0] and lines[0].endswith(" left")
    assert "steps/s, 1,000 tokens/s, competition" in lines[1] and "gradient 1.5  rate 1.00e-05" in lines[2]
    assert lines[3].split() == ["expert", "share", "largest", "loss"]
    assert lines[4].split() == ["lexical", "0.250", "→", "▃" * 11, "30.0%", "1.000", "→", "▁" * 11]
    assert lines[6].split() == ["entropy", "of", "shares", "1.00", "→", "█" * 11, "of", "0.69"]
    third = {f"{kind}.global": CAME[f"{kind}.local"] for kind in ("share", "wins", "loss")}
    assert rendered_lines(CAME | third)[7].endswith("of 1.10")  # ln 3
    assert "all experts learn equally" in rendered_lines(CAME | {"competing": 0.0}, width=80)[1]


def test_other_trainings_show_what_they_have():
    assert [line.split()[:3] for line in rendered_lines(CONTRASTIVE)[3:]] == [
        ["expert", "loss"], ["lexical", "1.500", "→"], ["an_expert_of_…", "0.500", "→"],
    ]  # fmt: skip
    assert [line.split() for line in rendered_lines(PRETRAINED, width=44)[3:]] == [
        ["expert", "loss", "accuracy"], ["mlm", "4.000", "→", "▁" * 16, "0.125", "→"],
    ]  # fmt: skip
    lines = rendered_lines(ROUTED)
    assert lines[-1].split() == ["gate", "0.50", "→", "of", "1.10", "█▄▁", "least", "0.0%"]
    assert rendered_lines(DEVELOPED)[-1] == "dev.fused.nDCG@10 0.5000, best 0.5000 after step 1"


def test_an_alarm_is_shown_whole_while_it_lasts():
    lines = rendered_lines(ROUTED, steps=500)
    assert " ".join(lines[-3:]).startswith("step 500: gate hardly selects expert 2 (0.00%)") and lines[-1].endswith("--objective")


@pytest.mark.parametrize("facts", [CAME, ROUTED, PRETRAINED, CONTRASTIVE, DEVELOPED, {}])
@pytest.mark.parametrize("width", [1, 20, 60, 200])
@pytest.mark.parametrize("steps", [0, 1, 600])
def test_no_line_is_longer_than_the_terminal_and_no_picture_higher(facts, width, steps):
    for height in (2, 6, 24):
        lines = rendered_lines(facts, width, height, steps)
        assert all(len(line) <= width for line in lines) and 1 <= len(lines) < max(height, 3)
    assert len({len(line) for line in rendered_lines(CAME, width)[4:6]}) == 1


def draw_panel(monkeypatch, *, terminal=True, encoding="utf-8", done=0):
    """Output on stderr of a display of ten steps, a tenth of a second each, with a log line in the middle."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True)
    stream.isatty = lambda: terminal
    monkeypatch.setattr("sys.stderr", stream)
    console.configure_logging()
    now = [0.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    monitor = training_monitor.TrainingMonitor()
    with live_display.show_training("training", 10, done, monitor) as meter:
        for step in range(10):
            now[0] += 0.1
            monitor.update({"step": step + 1, **CAME})
            if step == 5:
                logging.getLogger("moeir").info("a line")
            meter.advance(1, "loss 3.000")
    return stream.buffer.getvalue().decode(encoding)


@pytest.fixture
def coloured(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("LINES", "40")


def test_a_terminal_is_drawn_four_times_a_second_at_most_and_left_clean(coloured, monkeypatch):
    output = draw_panel(monkeypatch)
    assert 3 <= output.count("entropy of shares") <= 6  # in one second, once more for the log line, once at the end
    assert output.count("\x1b[?25l") == output.count("\x1b[?25h") == 1 and output.rindex("\x1b[?25h") > output.rindex("training")
    assert "a line" in output and re.search(r"\x1b\[[0-9;]*3[0-9]m", output)


def test_without_colour_or_wide_letters_it_is_still_a_picture(coloured, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", draw_panel(monkeypatch))
    output = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", draw_panel(monkeypatch, encoding="ascii"))
    assert "training ==" in output and "0.250 = ---" in output


def test_elsewhere_it_is_a_line_now_and_then(coloured, monkeypatch):
    assert draw_panel(monkeypatch, terminal=False) == "a line\n"
    monkeypatch.setattr(console, "SECONDS_BETWEEN_LINES", 0.45)
    assert draw_panel(monkeypatch, terminal=False).splitlines()[0] == "training: 5 of 10, 10.0/s, 0 s left, loss 3.000"
    assert draw_panel(monkeypatch, terminal=False, done=90).splitlines()[0].startswith("training: 95 of 10, 10.0/s, ")
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b" not in draw_panel(monkeypatch)


def test_a_step_costs_little():
    monitor, facts = (
        training_monitor.TrainingMonitor(),
        CAME | {f"usage.layer{layer}.{expert}": 0.25 for layer in range(6) for expert in range(4)},
    )
    meter = ProgressMeter("training", 10_000)
    began = time.process_time()
    for step in range(1, 1001):
        monitor.update({"step": step, **facts})
        if step % 100 == 0:
            live_display.render_lines(monitor, meter, 80, 40)
    assert (time.process_time() - began) / 1000 < 1e-3


INTERRUPTED_PROGRAM = """
import sys, time
from moeir import cli, console
from moeir.training import live_display
from moeir.analysis.training_monitor import TrainingMonitor
def train(*_):
    monitor = TrainingMonitor()
    with live_display.show_training("training", 1000, 0, monitor) as meter:
        for step in range(1, 1001):
            monitor.update({"step": step, "loss": 1.0, "loss.a": 1.0})
            meter.advance()
            time.sleep(0.02)
cli._invoke = train
cli.main()
"""


def test_ctrl_c_leaves_the_terminal_clean():
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    previous_handler = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a child of a background job would inherit that it is ignored
    child = subprocess.Popen([sys.executable, "-c", INTERRUPTED_PROGRAM], stderr=slave, env=os.environ | {"TERM": "xterm"})
    signal.signal(signal.SIGINT, previous_handler)
    os.close(slave)
    output = b""
    while output.count(b"loss") < 3:
        output += os.read(master, 4096)
    child.send_signal(signal.SIGINT)
    assert child.wait(timeout=120) == 130
    with open(master, "rb", buffering=0) as rest:
        while chunk := _read_rest(rest):
            output += chunk
    end = output[output.rindex(b"\x1b[?25h") :].decode()
    assert output.count(b"\x1b[?25l") == 1 and "loss" not in end, "the cursor is back, and nothing of the panel is drawn after that"
    assert end.endswith("stopped; the same command continues, or starts over\r\n") and "\x1b[2K" in end


def _read_rest(stream):
    """The rest of a pseudo-terminal's output; a closed other end counts as end of file."""
    try:
        return stream.read(4096)
    except OSError:
        return b""
