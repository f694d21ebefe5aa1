"""Output for people: log lines and progress on stderr, colours only on a terminal. stdout is for data only."""

import errno
import io
import logging
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NoReturn, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from moeir.parsing import escape_controls

Item = TypeVar("Item")
SECONDS_BETWEEN_LINES = 30.0
BARS = "▁▂▃▄▅▆▇█"  # levels from low to high
_quiet = False


def configure_logging() -> None:
    """Send moeir's log lines to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_LineFormatter())
    logger = logging.getLogger("moeir")
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False


class _ClosedStream(io.TextIOBase):
    """Stands for a standard stream that the caller has closed: an error for whoever needs it."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def buffer(self) -> "_ClosedStream":
        """Itself, for readers and writers of bytes."""
        return self

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def read(self, *arguments: Any) -> NoReturn:
        raise OSError(errno.EBADF, "is closed", self._name)

    readline = __next__ = write = read


def prepare_streams() -> None:
    """Let standard input and output fail clearly if they are closed, drop messages if standard error is, and print characters that the
    encoding of a stream lacks as Python writes them."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - open as long as the process
    for name in ("stdin", "stdout"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, _ClosedStream({"stdin": "standard input", "stdout": "standard output"}[name]))
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace" if name == "stdin" else "backslashreplace")


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
        words = [f"{self.label}: {self.done:,}" + (f" of {self.total:,}" if self.total else ""), f"{self.rate:,.1f}/s"]
        words += [self.remaining_time] if self.remaining_time else []
        return ", ".join([*words, self.note] if self.note else words)


@contextmanager
def meter(label: str, total: int | None = None, *, done: int = 0) -> Iterator[ProgressMeter]:
    """A meter that the caller advances, from what is done already."""
    if _quiet or not sys.stderr.isatty():
        yield ProgressMeter(label, total, done=done)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.fields[note]}"), console=Console(stderr=True), transient=True) as bar, _log_above_live():
        yield ProgressMeter(label, total, bar, done=done)


@contextmanager
def _log_above_live() -> Iterator[None]:
    """Send log lines to the current stderr, so that they appear above the progress bar."""
    streams = [(handler, handler.stream) for handler in logging.getLogger("moeir").handlers if isinstance(handler, logging.StreamHandler)]
    for handler, _ in streams:
        handler.stream = sys.stderr
    try:
        yield
    finally:
        for handler, stream in streams:
            handler.stream = stream


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


def progress(items: Iterable[Item], label: str, total: int | None = None) -> Iterator[Item]:
    """Iterate over `items` and show progress."""
    if total is None and isinstance(items, Sized):
        total = len(items)
    with meter(label, total) as counter:
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
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if count < 1024 or unit == "TiB":
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return ""
