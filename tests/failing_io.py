"""The n-th open, fsync, rename or new folder of a command fails, or no file may grow beyond a size, as on a full disk: native code, too."""

import builtins
import errno
import io
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from moeir.artifacts.manifests import MANIFEST
from tests.conftest import CommandResult
from tests.faults import Programme, list_files
from tests.kill_points import FullDisk, wrap_calls
from tests.stage_scenarios import read_if_present, run_command

ERRORS = {
    "open": (errno.EIO, errno.EMFILE),
    "fsync": (errno.EIO, errno.ENOSPC),
    "rename": (errno.EIO, errno.ENOSPC),
    "mkdir": (errno.EACCES,),
}
FULL = "write"  # the kind of fault that is a size


class FailingCall(NamedTuple):
    """The `number`-th call of a kind fails with an error of the system, a full disk from then on; number 0: none fails."""

    kind: str
    number: int
    error: int

    def __str__(self) -> str:
        return f"{self.kind} {self.number} {errno.errorcode.get(self.error)}"

    @property
    def row(self) -> str:
        """The kind of call and the error."""
        return f"{self.kind} {errno.errorcode.get(self.error)}"

    def check(self, programme: Programme) -> str | None:
        """Run the command with the fault, and again without."""
        result, calls = run_failing(programme, self)
        met = calls.failed if self.kind != FULL else f"a file of more than {self.number} bytes"
        programme.counts[self.row, "faults"] += bool(met)
        programme.counts[self.row, "refusals"] += bool(result.code)
        problem = self._check_result(programme, result, met) or programme.run_again(max_refusals=0)
        return problem and f"of {met}: {problem}"

    def _check_result(self, programme: Programme, result: CommandResult, met: str | None) -> str | None:
        """What is wrong with the end of the command and with what it leaves."""
        (product,) = programme.products
        content, expected, earlier = read_if_present(product), programme.expected[product], programme.earlier[product]
        if result.code == 0:
            is_told = re.search("is finished, but a file beside it cannot be removed|could not be removed whole", result.stderr)
            if met and self.kind in ("fsync", FULL) and not is_told:  # another call may be tried again, or in another way
                return "the command passes over it"
            return None if content == expected else "exit code 0, but another product"
        errors = [line for line in result.messages if line.startswith("error: ")]
        if result.code not in (1, 2, 3, 4) or len(errors) != 1 or met is None:
            return f"not a refusal of one line: {result.code} {result.stderr!r}"
        if os.strerror(self.error) not in errors[0]:
            return f"does not say why: {result.code} {errors[0]!r}"
        return programme.check_products() or _check_files(programme, is_new=content == expected, is_other=expected != earlier)


def _check_files(programme: Programme, *, is_new: bool, is_other: bool) -> str | None:
    """No file may be lost, and only work that can be continued may stay: a partial product with its state, and its record. The product is
    the new one or the earlier one, which is another."""
    files, (product,) = list_files(), programme.products
    has_state = any(file.stat().st_size for file in files if any(part.endswith("resume") for part in file.parts))
    suffixes = (".partial", ".resume", ".record") if has_state else ()
    if is_new and is_other:  # in its place, but not yet on the disk for certain: the earlier one stays
        suffixes += (".old", ".record")
    new = {file for file in programme.files_whole if file.is_relative_to(product) or file.name == f"{product.name}.{MANIFEST}"}
    added = files - programme.files_before - (programme.files_whole if is_new else programme.files_whole - new)
    if unexpected := sorted(str(file) for file in added if not any(part.endswith(suffixes) for part in file.parts)):
        return f"leaves {', '.join(unexpected)}"
    finished = {file for file in programme.files_before if not any(part.startswith(".") for part in file.parts)}
    lost = set() if is_new else finished - files
    return f"loses {', '.join(sorted(map(str, lost)))}" if lost else None


def list_failing_calls(programme: Programme) -> list[FailingCall]:
    """Each call of the command with each error, and a disk that is full a byte before the end of each of its files."""
    with programme.copy("counted"):
        result, calls = run_failing(programme, FailingCall("", 0, 0))
        assert result.code == 0, result.stderr
    failing = [FailingCall(kind, number, error) for kind in ERRORS for number in range(1, calls.counts[kind] + 1) for error in ERRORS[kind]]
    (product,) = programme.products
    sizes = {len(content) for content in (programme.expected[product] or {}).values() if content}
    return failing + [FailingCall(FULL, size - 1, errno.EFBIG) for size in sorted(sizes)]


def run_failing(programme: Programme, fault: FailingCall) -> tuple[CommandResult, "_Calls"]:
    """Run the command of a programme while a call on a file in the programme's folder fails."""
    (command,), calls = programme.commands, _Calls(programme.root.resolve(), fault)
    with calls.replaced(), closing(FullDisk(bytes=fault.number)) if fault.kind == FULL else nullcontext():
        return run_command(command), calls


class _Calls:
    """Counts the calls by kind, and lets one fail: `failed` is its file."""

    def __init__(self, folder: Path, fault: FailingCall) -> None:
        self._folder, self._fault = folder, fault
        self.counts: Counter[str] = Counter()
        self.failed: str | None = None

    @contextmanager
    def replaced(self) -> Iterator[None]:
        """In the block the calls of Python are counted."""
        with pytest.MonkeyPatch.context() as patch:
            wrap_calls(patch, ["open"], self._count, builtins)
            patch.setattr(io, "open", builtins.open)
            wrap_calls(patch, ("open", "fsync", "mkdir", "rename", "replace"), self._count)
            yield

    def _count(self, name: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        kind = "rename" if name == "replace" else name
        file = arguments[1] if kind == "rename" else arguments[0]
        path = os.readlink(f"/proc/self/fd/{file}") if isinstance(file, int) else os.path.abspath(os.fsdecode(file))
        if os.path.realpath(path).startswith(str(self._folder)):
            self.counts[kind] += 1
            if kind == self._fault.kind and self._is_failing(self.counts[kind]):
                self.failed = path
                names = [] if kind == "fsync" else [str(arguments[0]), None, str(arguments[1])] if kind == "rename" else [path]
                raise OSError(self._fault.error, os.strerror(self._fault.error), *names)
        return call(*arguments, **options)

    def _is_failing(self, count: int) -> bool:
        is_full = self._fault.error == errno.ENOSPC and self._fault.kind == "fsync"
        return count == self._fault.number or (is_full and count > self._fault.number)
