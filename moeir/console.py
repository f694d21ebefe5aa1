"""What people see: log lines and progress on stderr, colours only on a terminal. Data never passes here."""

import logging
import sys
import time
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

Item = TypeVar("Item")
SECONDS_BETWEEN_LINES = 30.0
_quiet = False


def start(*, verbose: bool = False) -> None:
    """Send moeir's log lines to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger = logging.getLogger("moeir")
    logger.handlers[:] = [handler]
    logger.setLevel(logging.DEBUG if verbose else logging.INFO)
    logger.propagate = False


def hush() -> None:
    """Say no more than errors: a process whose rank is not zero."""
    global _quiet
    _quiet = True
    logging.getLogger("moeir").setLevel(logging.ERROR)


class Meter:
    """Counts work done; a bar on a terminal, otherwise a line every 30 s."""

    def __init__(self, what: str, total: int | None, bar: Any = None) -> None:
        self.what, self.total, self.done, self.note = what, total, 0, ""
        self._bar, self._began, self._said = bar, time.monotonic(), time.monotonic()
        self._task = bar.add_task(what, total=total, note="") if bar else None

    def advance(self, count: int = 1, note: str | None = None) -> None:
        """Add `count` to what is done; `note` replaces the words behind the count."""
        self.done += count
        self.note = self.note if note is None else note
        if self._bar:
            self._bar.update(self._task, advance=count, note=self.note)
        elif not _quiet and time.monotonic() - self._said >= SECONDS_BETWEEN_LINES:
            self._said = time.monotonic()
            logging.getLogger("moeir").info(self.line())

    def line(self) -> str:
        """One line of plain text: how far, how fast, how long still."""
        seconds = max(time.monotonic() - self._began, 1e-9)
        rate = self.done / seconds
        words = [f"{self.what}: {self.done:,}" + (f" of {self.total:,}" if self.total else ""), f"{rate:,.1f}/s"]
        if self.total and self.done:
            words.append(f"{clock((self.total - self.done) / rate)} left")
        return ", ".join([*words, self.note] if self.note else words)


@contextmanager
def meter(what: str, total: int | None = None) -> Iterator[Meter]:
    """A meter for work that advances by hand."""
    if _quiet or not sys.stderr.isatty():
        yield Meter(what, total)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.fields[note]}"), console=Console(stderr=True), transient=True) as bar:
        yield Meter(what, total, bar)


def progress(items: Iterable[Item], what: str, total: int | None = None) -> Iterator[Item]:
    """Walk over `items`, showing how far."""
    if total is None and isinstance(items, Sized):
        total = len(items)
    with meter(what, total) as counter:
        for item in items:
            yield item
            counter.advance()


def clock(seconds: float) -> str:
    """Seconds for people.

    >>> clock(59), clock(61), clock(3700)
    ('59 s', '1 min 01 s', '1 h 01 min')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{int(seconds) // 60} min {int(seconds) % 60:02d} s"
    return f"{int(seconds) // 3600} h {int(seconds) % 3600 // 60:02d} min"


def size(count: float) -> str:
    """Bytes for people.

    >>> size(1536), size(3 * 2**30)
    ('1.5 KiB', '3.0 GiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if count < 1024 or unit == "TiB":
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return ""
