"""Output for people: log lines and progress on stderr, colours only on a terminal. stdout is for data only."""

import io
import logging
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from moeir.parsing import escape_controls

Item = TypeVar("Item")
SECONDS_BETWEEN_LINES = 30.0
BARS = "▁▂▃▄▅▆▇█"  # levels from low to high
_quiet = False


def configure_logging() -> None:
    """Send moeir's log lines to stderr."""
    handler = _StderrHandler()
    handler.setFormatter(_LineFormatter())
    logger = logging.getLogger("moeir")
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False


def prepare_streams() -> None:
    """Let a closed standard input be empty, a closed output refuse what is written to it, and closed errors swallow it; print characters
    that the encoding of a stream lacks as Python writes them."""
    for name, mode in (("stdin", "r"), ("stdout", "r"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - open as long as the process
        elif isinstance(stream, io.TextIOWrapper) and name != "stderr":
            stream.reconfigure(errors="replace" if name == "stdin" else "backslashreplace")


class _StderrHandler(logging.StreamHandler[Any]):
    """Log lines to the current stderr, which a progress bar replaces so that they appear above it."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


class _LineFormatter(logging.Formatter):
    """One line for each record, whatever the texts in it hold."""

    def format(self, record: logging.LogRecord) -> str:
        return escape_controls(super().format(record))


def silence() -> None:
    """Log errors only, as in processes whose rank is not zero."""
    global _quiet
    _quiet = True
    logging.getLogger("moeir").setLevel(logging.ERROR)


class ProgressMeter:
    """Progress of a task: a bar on a terminal, otherwise a line every 30 s."""

    def __init__(self, label: str, total: int | None, bar: Any = None, *, done: int = 0) -> None:
        self.label, self.total, self.done, self.note, self._initial = label, total, done, "", done
        self._bar, self._start_time, self._last_line_time = bar, time.monotonic(), time.monotonic()
        self._task = bar.add_task(label, total=total, completed=done, note="") if bar else None

    def advance(self, count: int = 1, note: str | None = None) -> None:
        """Add `count` to what is done; `note` replaces the text after the count."""
        self.done += count
        self.note = self.note if note is None else note
        if self._bar:
            self._bar.update(self._task, advance=count, note=self.note)
        elif not _quiet and time.monotonic() - self._last_line_time >= SECONDS_BETWEEN_LINES:
            self._last_line_time = time.monotonic()
            logging.getLogger("moeir").info(self.format_line())

    @property
    def rate(self) -> float:
        """Items per second since this process started."""
        return (self.done - self._initial) / max(time.monotonic() - self._start_time, 1e-9)

    @property
    def remaining_time(self) -> str:
        """Estimated remaining time as text; empty until the rate is known."""
        return f"{format_seconds((self.total - self.done) / self.rate)} left" if self.total and self.done > self._initial else ""

    def format_line(self) -> str:
        """One line of plain text: count, rate and remaining time."""
        speed = f"{self.rate:,.1f}/s" if self.rate >= 1 or not self.rate else f"{1 / self.rate:,.1f} s each"
        words = [f"{self.label}: {self.done:,}" + (f" of {self.total:,}" if self.total else ""), speed]
        words += [self.remaining_time] if self.remaining_time else []
        return ", ".join([*words, self.note] if self.note else words)


@contextmanager
def meter(label: str, total: int | None = None, *, done: int = 0) -> Iterator[ProgressMeter]:
    """A meter that the caller advances, from what is done already."""
    if _quiet or not sys.stderr.isatty():
        yield ProgressMeter(label, total, done=done)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.fields[note]}"), console=Console(stderr=True), transient=True) as bar:
        yield ProgressMeter(label, total, bar, done=done)


def sparkline(values: Sequence[float], width: int) -> str:
    """A sparkline of values in at most `width` characters, from their least to their largest.

    >>> sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8), sparkline([1, 1, 3, 3], 2), sparkline([0.5], 4), sparkline([], 4)
    ('▁▂▃▄▅▆▇█', '▁█', '▁', '')
    """
    width = min(width, len(values))
    ends = [number * len(values) // width for number in range(width + 1)] if width else [0]
    means = [sum(values[first:last]) / (last - first) for first, last in pairwise(ends)]
    least, most = min(means, default=0.0), max(means, default=0.0)
    scaled = ((mean - least) / (most - least) if most > least else 0.0 for mean in means)
    return "".join(BARS[min(len(BARS) - 1, int(part * len(BARS)))] for part in scaled)


def progress(items: Iterable[Item], label: str) -> Iterator[Item]:
    """Iterate over `items` and show progress."""
    with meter(label, len(items) if isinstance(items, Sized) else None) as counter:
        for item in items:
            yield item
            counter.advance()


def format_seconds(seconds: float) -> str:
    """Format seconds for people.

    >>> format_seconds(59), format_seconds(61), format_seconds(3700)
    ('59 s', '1 min 01 s', '1 h 01 min')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{int(seconds) // 60} min {int(seconds) % 60:02d} s"
    return f"{int(seconds) // 3600} h {int(seconds) % 3600 // 60:02d} min"


def format_count(count: int, noun: str) -> str:
    """A number with its noun.

    >>> format_count(1, "query"), format_count(5183, "text"), format_count(2, "query")
    ('1 query', '5,183 texts', '2 queries')
    """
    plural = f"{noun.removesuffix('y')}ies" if noun.endswith("y") else f"{noun}s"
    return f"{count:,} {noun if count == 1 else plural}"


def format_bytes(count: float) -> str:
    """Format a number of bytes for people.

    >>> format_bytes(1536), format_bytes(3 * 2**30)
    ('1.5 KiB', '3.0 GiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
