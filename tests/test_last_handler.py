"""Errors that nobody foresaw, and texts from outside in what is printed: one line, no traceback, no control characters."""

import os
import signal
import subprocess
import sys

import pytest

from moeir.evaluation import tables
from moeir.parsing import escape_controls, shorten_message
from moeir.stages.evaluate import Evaluate
from tests.conftest import run_in_subprocess

UNMAPPED = "libtorch_cpu.so: failed to map segment from shared object"


class Panic(BaseException):
    """As Rust's code raises."""


@pytest.mark.parametrize(
    "error", [KeyError("x\n\x1b[2J"), AssertionError(), Panic("poisoned"), RuntimeError("y" * 10_000), ImportError(UNMAPPED)]
)
def test_an_error_that_nobody_foresaw_is_one_line_with_its_place_unless_memory_has_run_out(error, monkeypatch, moeir):
    def fail(self):
        raise error

    monkeypatch.delenv("MOEIR_TRACEBACK", raising=False)
    monkeypatch.setattr(Evaluate, "check", fail)
    result = moeir("evaluate", "--run", "x.trec", "--qrels", "q.tsv")
    printed = result.stderr
    if isinstance(error, ImportError):  # of a library that does not fit
        assert result.code == 1 and printed.startswith("error: out of memory; ") and "ulimit -v" in printed
        return
    assert result.code == 70 and printed.count("\n") == 1 and "\x1b" not in printed and len(printed) < 5_000
    assert printed.startswith(f"error: {type(error).__name__} at base.py:") and "this is a bug of moeir; please report" in printed


def test_ctrl_c_is_ctrl_c_also_where_native_code_makes_an_error_of_it(monkeypatch, moeir):
    def read_natively(self):
        try:
            signal.raise_signal(signal.SIGINT)  # in this thread, at once
        except KeyboardInterrupt:
            raise ValueError("could not determine the shape of object type 'torch.storage.UntypedStorage'") from None

    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # whatever an earlier test has left
    signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr(Evaluate, "check", read_natively)
    result = moeir("evaluate", "--run", "x.trec", "--qrels", "q.tsv")
    assert (result.code, result.stderr) == (130, "stopped; the same command continues, or starts over\n")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


INTERRUPTED_IMPORT = """
import builtins, os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler if sys.argv.pop() == "heard" else signal.SIG_IGN)
import_module = builtins.__import__
def interrupt(name, *arguments):
    if name == "typer":
        os.kill(os.getpid(), signal.SIGINT)
    return import_module(name, *arguments)
builtins.__import__ = interrupt
from moeir.__main__ import run_command_line
run_command_line()
"""


def test_ctrl_c_while_the_command_line_is_imported_is_one_line_unless_it_is_ignored():
    result = run_in_subprocess("--version", "heard", program=INTERRUPTED_IMPORT)
    assert (result.code, result.stdout, result.stderr) == (130, "", "stopped; the same command starts over\n")
    result = run_in_subprocess("--version", "ignored", program=INTERRUPTED_IMPORT)
    assert (result.code, result.stderr) == (0, "") and result.stdout.startswith("moeir ")


def test_a_name_cannot_split_a_table():
    rows = [["a\nb", 0.5], ["c\td\x1b[31m", 0.25]]
    assert len(tables.format_table(["run", "RR"], rows).split("\n")) == 4
    assert [line.split("\t") for line in tables.format_lines(["run", "RR"], rows, "tsv")] == [
        ["run", "RR"], ["a\\nb", "0.5"], ["c\\td\\x1b[31m", "0.25"],
    ]  # fmt: skip


def test_other_letters_stay_as_they_are():
    assert escape_controls("Zürich – 東京 \u200b🙂") == "Zürich – 東京 \u200b🙂"
    assert shorten_message("  many   words\n") == "many words"
    assert len(shorten_message("word " * 10_000)) == 4_001


def run_in_shell(line, folder):
    """A shell's line with the command as $MOEIR: its exit code, what it printed, and its errors."""
    environment = os.environ | {"MOEIR": f"{sys.executable} -m moeir"}
    done = subprocess.run(["sh", "-c", line], cwd=folder, env=environment, capture_output=True, timeout=300, check=False)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        ("$MOEIR evaluate --run run.trec --qrels qrels >&-", 1, "error: not writable"),
        ("$MOEIR evaluate --run - --qrels qrels <&-", 3, "error: standard input: holds no line"),
        ("$MOEIR evaluate --run absent --qrels qrels 0<&- 1>&- 2>&-", 3, ""),
        ("$MOEIR evaluate --run run.trec --qrels qrels --output table.txt 0<&- 1>&- 2>&-", 0, ""),
        ("$MOEIR evaluate --run $(printf 'b\\377.trec') --qrels qrels", 2, "expected UTF-8 text without zero bytes; rename the file"),
    ],
)
def test_closed_streams_fail_only_who_needs_them_and_a_name_that_is_not_utf_8_is_refused(tmp_path, line, code, message):
    (tmp_path / "run.trec").write_text("1 Q0 d1 1 2.0 x\n", encoding="utf-8")
    (tmp_path / "qrels").write_text("1 0 d1 1\n", encoding="utf-8")
    exit_code, _, errors = run_in_shell(line, tmp_path)
    assert exit_code == code and errors.count("\n") == bool(message) and message in errors and "Traceback" not in errors, errors


def test_a_terminal_without_utf_8_shows_what_it_can(tmp_path):
    code, printed, errors = run_in_shell("PYTHONIOENCODING=ascii $MOEIR variants objectives", tmp_path)
    assert code == 0 and printed.isascii() and "\\u" in printed, errors
