"""Errors that nobody foresaw, and texts from outside in what is printed: one line, no traceback, no control characters."""

import logging

import pytest

from moeir import cli, console
from moeir.evaluation import tables
from moeir.parsing import escape_controls, shorten_message
from moeir.stages.evaluate import Evaluate


class Panic(BaseException):
    """As Rust's code raises."""


@pytest.mark.parametrize("error", [KeyError("x\n\x1b[2J"), AssertionError(), Panic("poisoned"), RuntimeError("y" * 10_000)])
def test_an_error_that_nobody_foresaw_is_one_line_with_its_place(error, monkeypatch, moeir):
    def fail(self):
        raise error

    monkeypatch.delenv("MOEIR_TRACEBACK", raising=False)
    monkeypatch.setattr(Evaluate, "check", fail)
    result = moeir("evaluate", "--run", "x.trec", "--qrels", "q.tsv")
    printed = result.stderr
    assert result.code == 70 and printed.count("\n") == 1 and "\x1b" not in printed and len(printed) < 5_000
    assert printed.startswith(f"error: {type(error).__name__} at base.py:") and "this is a bug of moeir; please report" in printed


def test_the_traceback_is_shown_on_request(monkeypatch):
    def fail(self):
        raise KeyError("x")

    monkeypatch.setenv("MOEIR_TRACEBACK", "1")
    monkeypatch.setattr(Evaluate, "check", fail)
    with pytest.raises(KeyError):
        cli._exit_code(["evaluate", "--run", "x.trec", "--qrels", "q.tsv"])


def test_a_log_line_stays_a_line(capsys):
    console.configure_logging()
    logging.getLogger("moeir.test").info("made %s", "a\nb\x1b]0;title\x07")
    assert capsys.readouterr().err == "made a\\nb\\x1b]0;title\\x07\n"


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
