"""Costs of work on a device: kernel launches, host syncs, and copies between host and device, by operation and source line.

`launches` counts each operation that reaches the device and is not a view: the number in cost tables, independent of sizes.
"""

import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = f"{ROOT / 'moeir'}/"
OWN_NAMES = ("fake_attention", "operation_counts", "fake_torch_cuda", "fake_cuda")
FAKE_DEVICE_FILES = tuple(str(ROOT / "tests" / "device" / f"{name}.py") for name in OWN_NAMES)
LAUNCH, SYNC, BLOCKING, COPY, BACK = "launch", "sync", "blocking host-to-device", "non-blocking host-to-device", "device-to-host"
KINDS = (LAUNCH, SYNC, BLOCKING, COPY, BACK)


class OperationCounts:
    """Events since the start by (kind, operation, source line): file:line of moeir, or of the calling library."""

    region: str | None = None  # while it is computed, its launches count as the one of its beginning

    def __init__(self, cells: Counter[tuple[str, str, str]] | None = None) -> None:
        self.cells = Counter[tuple[str, str, str]]() if cells is None else cells
        self._lock = threading.Lock()

    def add(self, kind: str, operation: str, *, count: int = 1) -> None:
        """Count an event at the current source line."""
        if kind == LAUNCH and self.region is not None:
            return
        where = current_source_line()
        with self._lock:
            self.cells[kind, operation, where] += count

    def enter(self, region: str | None) -> None:
        """Begin a region of operations that are counted as one launch, or end it (None)."""
        self.region = None
        if region is not None:
            self.add(LAUNCH, region)
        self.region = region

    def count(self, kind: str, operation: str | None = None) -> int:
        """Number of events of a kind, of one operation or of all."""
        return sum(count for key, count in self.cells.items() if key[0] == kind and operation in (None, key[1]))

    @property
    def launches(self) -> int:
        """Operations that reached the device."""
        return self.count(LAUNCH)

    @property
    def syncs(self) -> int:
        """Number of times the host waited for the device."""
        return self.count(SYNC)

    @property
    def blocking(self) -> int:
        """Copies to the device that block the host: from unpinned memory, or without `non_blocking`."""
        return self.count(BLOCKING)

    @property
    def copies(self) -> int:
        """Copies to the device that do not block the host."""
        return self.count(COPY)

    def source_lines(self, *kinds: str) -> list[tuple[str, str, str, int]]:
        """(kind, operation, source line, count), most frequent first."""
        rows = [(*key, count) for key, count in self.cells.items() if key[0] in kinds]
        return sorted(rows, key=lambda row: (KINDS.index(row[0]), -row[3], *row[1:3]))

    def copy(self) -> "OperationCounts":
        """A snapshot of the counts."""
        with self._lock:
            return OperationCounts(self.cells.copy())

    def since(self, before: "OperationCounts") -> "OperationCounts":
        """The counts since an earlier snapshot."""
        return OperationCounts(self.cells - before.cells)

    @contextmanager
    def measure(self) -> Iterator["OperationCounts"]:
        """Count the events inside, in any thread, in a separate object too."""
        own, before = OperationCounts(), self.copy()
        try:
            yield own
        finally:
            own.cells.update(self.copy().since(before).cells)


def current_source_line() -> str:
    """The innermost source line of moeir on the stack; else that of a library other than torch, or of a test."""
    frame, other = sys._getframe(1), None
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(PACKAGE):
            return f"moeir/{name[len(PACKAGE) :]}:{frame.f_lineno}"
        if other is None and not name.startswith((*FAKE_DEVICE_FILES, "<")) and "/torch/" not in name:
            path = name.split("site-packages/")[-1] if "site-packages/" in name else None
            path = name[len(str(ROOT)) + 1 :] if path is None and name.startswith(str(ROOT)) else path
            other = None if path is None else f"{path}:{frame.f_lineno}"
        frame = frame.f_back
    return other or "torch's own, such as a backward pass"
