"""Costs of work on a device: kernel launches, host syncs, and copies between host and device, by operation and source line.

There are two counts of launches. `launches` counts each operation that reaches the device and is not a view: the number in cost tables,
independent of sizes. `kernels` also counts the kernels of a few operations: foreach operations pack a limited number of tensors into a
kernel, `nonzero` has three, fused attention's backward has three.
"""

import sys
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = f"{ROOT / 'moeir'}/"
OWN_NAMES = ("fake_attention", "operation_counts", "fake_torch_cuda", "fake_cuda")
FAKE_DEVICE_FILES = tuple(str(ROOT / "tests" / "device" / f"{name}.py") for name in OWN_NAMES)
LAUNCH, SYNC, BLOCKING, COPY, BACK = "launch", "sync", "blocking host-to-device", "non-blocking host-to-device", "device-to-host"
KINDS = (LAUNCH, SYNC, BLOCKING, COPY, BACK)


@dataclass
class EventCount:
    """Counts of an event: occurrences, kernels, and bytes moved."""

    count: int = 0
    kernels: int = 0
    bytes: int = 0

    def add(self, other: "EventCount") -> None:
        """Add another count."""
        self.count += other.count
        self.kernels += other.kernels
        self.bytes += other.bytes


@dataclass
class OperationCounts:
    """Events since the start by (kind, operation, source line): file:line of moeir, or of the calling library."""

    cells: dict[tuple[str, str, str], EventCount] = field(default_factory=lambda: defaultdict(EventCount))
    region: str | None = None  # while it is computed, its launches count as the one of its beginning
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, kind: str, operation: str, *, count: int = 1, kernels: int | None = None, size: int = 0) -> None:
        """Count an event at the current source line."""
        if kind == LAUNCH and self.region is not None:
            return
        where = current_source_line()
        with self._lock:
            self.cells[kind, operation, where].add(EventCount(count, count if kernels is None else kernels, size))

    def enter(self, region: str | None) -> None:
        """Begin a region of operations that are counted as one launch, or end it (None)."""
        self.region = None
        if region is not None:
            self.add(LAUNCH, region)
        self.region = region

    def count(self, kind: str, operation: str | None = None) -> int:
        """Number of events of a kind, of one operation or of all."""
        return sum(cell.count for key, cell in self.cells.items() if key[0] == kind and operation in (None, key[1]))

    @property
    def launches(self) -> int:
        """Operations that reached the device."""
        return self.count(LAUNCH)

    @property
    def kernels(self) -> int:
        """Kernels of these operations."""
        return sum(cell.kernels for key, cell in self.cells.items() if key[0] == LAUNCH)

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
        rows = [(*key, cell.count) for key, cell in self.cells.items() if key[0] in kinds]
        return sorted(rows, key=lambda row: (KINDS.index(row[0]), -row[3], *row[1:3]))

    def operations(self, kind: str = LAUNCH) -> list[tuple[str, int]]:
        """(operation, count) of a kind, most frequent first."""
        sums: dict[str, int] = defaultdict(int)
        for (one, operation, _), cell in self.cells.items():
            if one == kind:
                sums[operation] += cell.count
        return sorted(sums.items(), key=lambda pair: (-pair[1], pair[0]))

    def copy(self) -> "OperationCounts":
        """A snapshot of the counts."""
        with self._lock:
            return OperationCounts({key: EventCount(cell.count, cell.kernels, cell.bytes) for key, cell in self.cells.items()})

    def since(self, before: "OperationCounts") -> "OperationCounts":
        """The counts since an earlier snapshot."""
        difference = OperationCounts()
        for key, cell in self.cells.items():
            old = before.cells.get(key, EventCount())
            if cell.count != old.count:
                difference.cells[key] = EventCount(cell.count - old.count, cell.kernels - old.kernels, cell.bytes - old.bytes)
        return difference

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


MAX_CHUNK, MAX_BLOCKS = 65_536, 320
MAX_TENSORS = (0, 110, 64, 48, 36, 30)  # of lists of one kind of tensor, two, …


def list_kernels(sizes: Iterable[int], depth: int) -> int:
    """Kernels for an operation on `depth` lists of tensors of `sizes` elements: ATen's multi_tensor_apply, whose arguments are limited.

    >>> list_kernels([10] * 200, 1), list_kernels([65_536 * 321], 1)
    (2, 2)
    """
    kernels, tensors, blocks = 0, 0, 0
    for size in sizes:
        tensors += 1
        for _ in range(-(-size // MAX_CHUNK)):
            if blocks == MAX_BLOCKS:
                kernels, tensors, blocks = kernels + 1, 1, 0
            blocks += 1
        if tensors == MAX_TENSORS[min(depth, 5)]:
            kernels, tensors, blocks = kernels + 1, 0, 0
    return kernels + (1 if blocks else 0)
