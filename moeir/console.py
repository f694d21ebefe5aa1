"""Output for people: log lines and progress on stderr, colours only on a terminal. stdout is for data only."""

import importlib
import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import Any, TypeVar

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.segment import Segment, Segments

Item = TypeVar("Item")
Line = Sequence[tuple[str, str]]  # segments of a line, each with its style
SECONDS_BETWEEN_LINES, SECONDS_BETWEEN_DRAWINGS = 30.0, 0.25
BARS, ARROWS = "▁▂▃▄▅▆▇█", "→↗↘"  # levels from low to high; trends 0, 1 and -1
PLAIN = str.maketrans(BARS + ARROWS + "━─…·", ".:-=+*#@" + "=^v" + "=-~.")  # for terminals with ASCII only
_quiet = False
_listener: Callable[[int], object] | None = None


def start(*, verbose: bool = False) -> None:
    """Send moeir's log lines to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger = logging.getLogger("moeir")
    logger.handlers[:] = [handler]
    logger.setLevel(logging.DEBUG if verbose else logging.INFO)
    logger.propagate = False


def hush() -> None:
    """Log errors only, as in processes whose rank is not zero."""
    global _quiet
    _quiet = True
    logging.getLogger("moeir").setLevel(logging.ERROR)


def tell(listener: Callable[[int], object]) -> None:
    """Silence this process and pass the counts of every meter to `listener`; another process shows them."""
    global _listener
    hush()
    _listener = listener


class Meter:
    """Progress of a task: a bar on a terminal, otherwise a line every 30 s."""

    def __init__(self, what: str, total: int | None, bar: Any = None, *, done: int = 0) -> None:
        self.what, self.total, self.done, self.note, self._first = what, total, done, "", done
        self._bar, self._began, self._said = bar, time.monotonic(), time.monotonic()
        self._task = bar.add_task(what, total=total, note="") if bar else None

    def advance(self, count: int = 1, note: str | None = None) -> None:
        """Add `count` to what is done; `note` replaces the text after the count."""
        self.done += count
        self.note = self.note if note is None else note
        if _listener is not None:
            _listener(count)
        if self._bar:
            self._bar.update(self._task, advance=count, note=self.note)
        elif not _quiet and time.monotonic() - self._said >= SECONDS_BETWEEN_LINES:
            self._said = time.monotonic()
            logging.getLogger("moeir").info(self.line())

    @property
    def rate(self) -> float:
        """Items per second since this process started."""
        return (self.done - self._first) / max(time.monotonic() - self._began, 1e-9)

    @property
    def left(self) -> str:
        """Estimated remaining time as text; empty until the rate is known."""
        return f"{clock((self.total - self.done) / self.rate)} left" if self.total and self.done > self._first else ""

    def line(self) -> str:
        """One line of plain text: count, rate and remaining time."""
        words = [f"{self.what}: {self.done:,}" + (f" of {self.total:,}" if self.total else ""), f"{self.rate:,.1f}/s"]
        words += [self.left] if self.left else []
        return ", ".join([*words, self.note] if self.note else words)


@contextmanager
def meter(what: str, total: int | None = None) -> Iterator[Meter]:
    """A meter that the caller advances."""
    if _quiet or not sys.stderr.isatty():
        yield Meter(what, total)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.fields[note]}"), console=Console(stderr=True), transient=True) as bar, _lines_above():
        yield Meter(what, total, bar)


class _Panel(Meter):
    """Lines that are redrawn in place, at most four times a second."""

    def __init__(self, what: str, total: int, done: int, live: Live, drawn: Callable[[Meter, int, int], Sequence[Line]]) -> None:
        super().__init__(what, total, done=done)
        self._live, self._drawn, self._last = live, drawn, -SECONDS_BETWEEN_DRAWINGS

    def advance(self, count: int = 1, note: str | None = None) -> None:
        self.done += count
        if time.monotonic() - self._last >= SECONDS_BETWEEN_DRAWINGS:
            console = self._live.console
            plain, parts = console.options.ascii_only, list[Segment]()
            for line in self._drawn(self, *console.size):
                parts += [Segment(words.translate(PLAIN) if plain else words, console.get_style(style or "none")) for words, style in line]
                parts.append(Segment.line())
            self._live.update(Segments(parts[:-1]), refresh=True)
            self._last = time.monotonic()


@contextmanager
def panel(what: str, total: int, drawn: Callable[[Meter, int, int], Sequence[Line]], *, done: int = 0) -> Iterator[Meter]:
    """A meter that shows on a terminal the lines of `drawn(meter, columns, rows)`; elsewhere a plain meter."""
    console = Console(stderr=True)
    if _quiet or not sys.stderr.isatty() or console.is_dumb_terminal:
        yield Meter(what, total, done=done)
        return
    with Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False) as live, _lines_above():
        yield _Panel(what, total, done, live, drawn)


@contextmanager
def _lines_above() -> Iterator[None]:
    """Send log lines to the current stderr, so that they appear above the live display."""
    streams = [(handler, handler.stream) for handler in logging.getLogger("moeir").handlers if isinstance(handler, logging.StreamHandler)]
    for handler, _ in streams:
        handler.stream = sys.stderr
    try:
        yield
    finally:
        for handler, stream in streams:
            handler.stream = stream


def asked(prompt: str) -> Iterator[str]:
    """Lines typed at a prompt on a terminal, or the lines of a pipe; ends with the stream or Ctrl-D."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        yield from (line.rstrip("\r\n") for line in sys.stdin)
        return
    with suppress(ImportError):
        importlib.import_module("readline")  # enables arrow keys and history
    console = Console()
    while True:
        try:
            yield console.input(prompt)
        except EOFError:
            console.print()
            return


def show(lines: Iterable[Line]) -> None:
    """Print lines of data on stdout, with their styles if it is a terminal."""
    console = Console(highlight=False) if sys.stdout.isatty() else None
    for line in lines:
        if console is None:
            sys.stdout.write("".join(words for words, _ in line).rstrip() + "\n")
        else:
            parts = [Segment(words, console.get_style(style or "none")) for words, style in line]
            console.print(Segments([*parts, Segment.line()]), end="")
    sys.stdout.flush()


def sparkline(values: Sequence[float], width: int, low: float | None = None, high: float | None = None) -> str:
    """A sparkline of values in at most `width` characters; the scale is `low` to `high`, by default the values' range.

    >>> sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8), sparkline([1, 1, 3, 3], 2), sparkline([0.5], 4, 0, 1), sparkline([], 4)
    ('▁▂▃▄▅▆▇█', '▁█', '▅', '')
    """
    width = min(width, len(values))
    ends = [number * len(values) // width for number in range(width + 1)] if width else [0]
    means = [sum(values[first:last]) / (last - first) for first, last in pairwise(ends)]
    least, most = (min(means, default=0.0) if low is None else low), (max(means, default=0.0) if high is None else high)
    scaled = ((mean - least) / (most - least) if most > least else 0.0 for mean in means)
    return "".join(BARS[max(0, min(len(BARS) - 1, int(part * len(BARS))))] for part in scaled)


def progress(items: Iterable[Item], what: str, total: int | None = None) -> Iterator[Item]:
    """Iterate over `items` and show progress."""
    if total is None and isinstance(items, Sized):
        total = len(items)
    with meter(what, total) as counter:
        for item in items:
            yield item
            counter.advance()


def clock(seconds: float) -> str:
    """Format seconds for people.

    >>> clock(59), clock(61), clock(3700)
    ('59 s', '1 min 01 s', '1 h 01 min')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{int(seconds) // 60} min {int(seconds) % 60:02d} s"
    return f"{int(seconds) // 3600} h {int(seconds) % 3600 // 60:02d} min"


def size(count: float) -> str:
    """Format a number of bytes for people.

    >>> size(1536), size(3 * 2**30)
    ('1.5 KiB', '3.0 GiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if count < 1024 or unit == "TiB":
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return ""
