"""The n-th open, read, write, fsync, rename or mmap of a command fails: seccomp stops these system calls, also those of native code.

The command runs in a forked child under a filter that reports each of the calls to the parent (`SECCOMP_RET_USER_NOTIF`, Linux 5.6 and
later). The parent lets a call continue, or answers it with an error, or writes only half of the bytes. Calls on files outside of the test's
folder always continue. An fsync is not executed, only answered.
"""

import ctypes
import errno
import fcntl
import json
import os
import platform
import select
import socket
import struct
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from moeir.artifacts.manifests import MANIFEST
from tests.stage_scenarios import (
    SCENARIOS,
    check_end,
    read_if_present,
    read_product,
    refusal_of,
    run_command,
    run_earlier,
    working_copy,
    working_folder,
    write_inputs,
)

KIND_OF_CALL = {  # numbers of x86-64
    **dict.fromkeys((2, 257, 437), "open"),  # open, openat, openat2
    **dict.fromkeys((0, 17, 19), "read"),  # read, pread64, readv
    **dict.fromkeys((1, 18, 20, 40, 326), "write"),  # write, pwrite64, writev, sendfile, copy_file_range
    **dict.fromkeys((74, 75), "fsync"),  # fsync, fdatasync
    **dict.fromkeys((82, 264, 316), "rename"),  # rename, renameat, renameat2
    9: "mmap",
}
OPENAT, OPEN, RENAME, WRITE, MMAP, SENDFILE = 257, 2, 82, 1, 9, 40
SHORT = 0  # half of the bytes are written, without an error
FAULTS = {
    "open": (errno.EIO, errno.EMFILE, errno.EINTR),
    "read": (errno.EIO, errno.EINTR),
    "write": (errno.EIO, errno.ENOSPC, errno.EINTR, SHORT),
    "fsync": (errno.EIO, errno.ENOSPC),
    "rename": (errno.EIO, errno.ENOSPC),
    "mmap": (errno.ENOMEM, errno.ENODEV),
}
CHANGING = ("write", "fsync", "rename")
PR_SET_NO_NEW_PRIVS, SECCOMP, SECCOMP_SET_MODE_FILTER, NEW_LISTENER, PIDFD_GETFD = 38, 317, 1, 8, 438
NOTIF_RECV, NOTIF_SEND, CONTINUE = 0xC0502100, 0xC0182101, 1
ALLOW, USER_NOTIF = 0x7FFF0000, 0x7FC00000
LOAD, JUMP_EQUAL, JUMP_ANY_BIT, RETURN = 0x20, 0x15, 0x45, 0x06  # of classic BPF
MAP_ANONYMOUS, AT_FDCWD = 0x20, -100


class Fault(NamedTuple):
    """The `number`-th call of a kind fails with an error of the system, a full disk from then on; number 0: none fails."""

    kind: str
    number: int
    error: int

    def __str__(self) -> str:
        return f"{self.kind} {self.number} {errno.errorcode.get(self.error, 'short')}"


class Outcome(NamedTuple):
    """How a command ended: exit code, lines on stderr, and the calls of each kind that were counted; `met` if the fault took place."""

    code: int
    stderr: str
    calls: dict[str, int]
    met: str | None


@cache
def is_supported() -> bool:
    """Whether system calls can be stopped here."""
    if not sys.platform.startswith("linux") or platform.machine() != "x86_64":
        return False
    child = os.fork()
    if child == 0:
        try:
            os.close(_stop_calls())
            os._exit(0)
        except OSError:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def run_failing(command: Callable[[], tuple[int, str]], folder: Path, fault: Fault) -> Outcome:
    """Run `command` in a child in which a call on a file in `folder` fails."""
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        try:
            os.fsync = sys.modules["posix"].fsync
            listener = _stop_calls()
            socket.send_fds(theirs, [b"x"], [listener])
            os.close(listener)
            theirs.sendall(json.dumps(command()).encode())
        except BaseException:  # noqa: BLE001 - nothing of the child may run the parent's tests
            theirs.sendall(json.dumps((-1, traceback.format_exc())).encode())
        finally:
            os._exit(0)
    theirs.close()
    with ours:
        listener = socket.recv_fds(ours, 1, 1)[1][0]
        supervisor = _Supervisor(child, folder.resolve(), fault)
        try:
            supervisor.answer_all(listener, ours)
            answer = b"".join(iter(lambda: ours.recv(1 << 16), b""))
        finally:
            os.close(listener)
            supervisor.close()
            os.waitpid(child, 0)
    code, stderr = json.loads(answer)
    return Outcome(code, stderr, dict(supervisor.counts), supervisor.met)


def _stop_calls() -> int:
    """Install the filter in this process; the file descriptor from which its calls are read."""
    program = [(LOAD, 0, 0, 0)]
    calls = [number for number in KIND_OF_CALL if number != MMAP]
    for position, number in enumerate(calls):
        program.append((JUMP_EQUAL, len(calls) - position + 3, 0, number))
    program += [(JUMP_EQUAL, 0, 2, MMAP), (LOAD, 0, 0, 16 + 3 * 8), (JUMP_ANY_BIT, 0, 1, MAP_ANONYMOUS)]
    program += [(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, USER_NOTIF)]
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in program)
    buffer = ctypes.create_string_buffer(code)
    header = struct.pack("HxxxxxxP", len(program), ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    listener = libc.syscall(SECCOMP, SECCOMP_SET_MODE_FILTER, NEW_LISTENER, header)
    if listener < 0:
        raise OSError(ctypes.get_errno(), "seccomp")
    return int(listener)


class _Supervisor:
    """Answers the calls of a child."""

    def __init__(self, child: int, folder: Path, fault: Fault) -> None:
        self._child, self._folder, self._fault = child, str(folder), fault
        self._memory = os.open(f"/proc/{child}/mem", os.O_RDONLY)
        self._process = os.pidfd_open(child)
        self.counts: Counter[str] = Counter()
        self.met: str | None = None

    def close(self) -> None:
        os.close(self._memory)
        os.close(self._process)

    def answer_all(self, listener: int, ended: socket.socket) -> None:
        """Answer calls until the child has sent its result."""
        poll = select.poll()
        poll.register(listener, select.POLLIN)
        poll.register(ended, select.POLLIN)
        while True:
            ready = dict(poll.poll())
            if listener in ready and ready[listener] & select.POLLIN:
                self._answer(listener)
            elif ready:
                return

    def _answer(self, listener: int) -> None:
        notification = bytearray(80)
        try:
            fcntl.ioctl(listener, NOTIF_RECV, notification)
        except OSError:  # the thread was interrupted meanwhile
            return
        identity, thread, _, number, _, _, *arguments = struct.unpack("=QIIiIQ6Q", notification)
        kind = KIND_OF_CALL[number]
        value, error, flags = 0, 0, CONTINUE
        path = self._path(thread, number, arguments)
        if path is not None and path.startswith(self._folder):
            self.counts[kind] += 1
            if kind == self._fault.kind and self._is_failing(self.counts[kind]):
                if self._fault.error != SHORT:
                    error, flags = -self._fault.error, 0
                    self.met = path
                elif number == WRITE and arguments[2] > 1:
                    value, flags = self._write_half(arguments), 0
                    self.met = path
            elif kind == "fsync":
                flags = 0
        try:
            fcntl.ioctl(listener, NOTIF_SEND, struct.pack("=QqiI", identity, value, error, flags))
        except OSError as problem:
            if problem.errno != errno.ENOENT:  # the call is no longer waited for
                raise

    def _is_failing(self, count: int) -> bool:
        is_full = self._fault.error == errno.ENOSPC and self._fault.kind != "rename"
        return 0 < self._fault.number == count or (is_full and 0 < self._fault.number < count)

    def _path(self, thread: int, number: int, arguments: Sequence[int]) -> str | None:
        """The file that a call is about, its own name or the target of a rename; None if it is none."""
        kind = KIND_OF_CALL[number]
        try:
            if kind not in ("open", "rename"):
                descriptor = arguments[4] if number == MMAP else arguments[0]
                return os.readlink(f"/proc/{thread}/fd/{ctypes.c_int(descriptor).value}")
            target = arguments[2:] if number not in (OPEN, RENAME) and kind == "rename" else arguments
            folder, name = (AT_FDCWD, target[kind == "rename"]) if number in (OPEN, RENAME) else target[:2]
            text = os.pread(self._memory, 4096, name).partition(b"\0")[0].decode()
            descriptor = ctypes.c_int(folder).value
            base = os.readlink(f"/proc/{thread}/cwd" if descriptor == AT_FDCWD else f"/proc/{thread}/fd/{descriptor}")
            return os.path.realpath(os.path.join(base, text))
        except OSError:
            return None

    def _write_half(self, arguments: Sequence[int]) -> int:
        """Write half of the bytes of a write in the child's place."""
        content = os.pread(self._memory, arguments[2] // 2, arguments[1])
        descriptor = ctypes.CDLL(None).syscall(PIDFD_GETFD, self._process, ctypes.c_int(arguments[0]).value, 0)
        try:
            return os.write(descriptor, content)
        finally:
            os.close(descriptor)


def _list_files() -> set[Path]:
    return {path for path in Path("out").rglob("*") if path.is_file()}


class Programme:
    """A scenario of one command and what it leaves when nothing fails, to compare with what it leaves when a call fails."""

    def __init__(self, name: str, folder: Path, inputs: Path) -> None:
        self.scenario, self._folder, self._inputs, self._root = SCENARIOS[name], folder, inputs, Path(os.path.commonpath([folder, inputs]))
        (self._command,), (self._product,) = self.scenario.commands, self.scenario.products
        self.counts: Counter[tuple[str, str, str]] = Counter()
        write_inputs(inputs, self.scenario.all_commands)
        with working_folder(folder / "earlier", inputs):
            Path("out").mkdir()
            run_earlier(self.scenario)
            self._earlier, self._before = read_if_present(self._product), _list_files()
            self._finished = {file for file in self._before if not any(part.startswith(".") for part in file.parts)}
        with working_copy(self._folder, "whole", self._inputs):
            assert run_command(self._command).code == 0
            self._expected, self._whole = read_product(self._product), _list_files()

    def list_faults(self) -> list[Fault]:
        """Each call of the command, with each error if it changes the disk, else with one of them in turn."""
        nothing = Fault("", 0, 0)
        with working_copy(self._folder, "counted", self._inputs):
            outcome = self._run(nothing)
            assert outcome.met is None and self._check_outcome(nothing, outcome) is None, outcome
        faults = []
        for kind, errors in FAULTS.items():
            for number in range(outcome.calls.get(kind, 0)):
                chosen = errors if kind in CHANGING else errors[number % len(errors) :][:1]
                faults += [Fault(kind, number + 1, error) for error in chosen]
        return faults

    def check(self, faults: Iterable[Fault]) -> list[str]:
        """Run the command with each fault and again without; what was wrong, one line for each."""
        failures = []
        for fault in faults:
            with working_copy(self._folder, "failed", self._inputs):
                outcome = self._run(fault)
                problem = self._check_outcome(fault, outcome) or self._check_second_run()
            row = (fault.kind, errno.errorcode.get(fault.error, "short"))
            for column, happened in (("faults", outcome.met), ("refused", outcome.code), ("failures", problem)):
                self.counts[*row, column] += bool(happened)
            if problem is not None:
                failures.append(f"{fault} of {outcome.met}: {problem}")
        return failures

    def total(self, column: str) -> int:
        """The sum of a column of the table."""
        return sum(count for key, count in self.counts.items() if key[2] == column)

    def table(self) -> dict[str, tuple[int, ...]]:
        """By kind of call and error: faults that took place, commands that refused, and failures."""
        rows = dict.fromkeys((kind, error) for kind, error, _ in self.counts)
        return {
            f"{kind} {error}": tuple(self.counts[kind, error, column] for column in ("faults", "refused", "failures"))
            for kind, error in rows
        }

    def _run(self, fault: Fault) -> Outcome:
        def run() -> tuple[int, str]:
            result = run_command(self._command)
            return result.code, "\n".join(result.messages)

        return run_failing(run, self._root, fault)

    def _check_outcome(self, fault: Fault, outcome: Outcome) -> str | None:
        content = read_if_present(self._product)
        if outcome.code == 0:
            if outcome.met and fault.kind == "fsync":  # another call may be tried again, or in another way
                return "the command passes over it"
            return None if content == self._expected else "exit code 0, but another product"
        errors = [line for line in outcome.stderr.splitlines() if line.startswith("error: ")]
        if outcome.code not in (1, 2, 3, 4) or len(errors) != 1 or outcome.met is None:
            return f"not a refusal of one line: {outcome.code} {outcome.stderr!r}"
        reasons = {os.strerror(fault.error), *(["out of memory"] if fault.error == errno.ENOMEM else [])}
        if fault.kind == "open" and outcome.met.endswith(".safetensors"):
            reasons.add(os.strerror(errno.ENOENT))  # safetensors' word for it, after our own open went well
        if not any(reason in errors[0] for reason in reasons):
            return f"does not say why: {outcome.code} {errors[0]!r}"
        if content not in (self._earlier, self._expected) or (content is not None and (refusal := refusal_of(self._product))):
            return f"harms the product that was there: {refusal if content else content!r}"
        return self._check_files(content)

    def _check_files(self, content: dict[str, bytes] | None) -> str | None:
        """No file may be lost, and only work that can be continued may stay: a partial product with its state, and its record."""
        files = _list_files()
        has_state = any(file.stat().st_size for file in files if any(part.endswith("resume") for part in file.parts))
        suffixes = (".partial", ".resume", ".record") if has_state else ()
        if content == self._expected != self._earlier:  # in its place, but not yet on the disk for certain: the earlier one stays
            suffixes += (".old",)
        added = files - self._allowed_files(content)
        if unexpected := sorted(str(file) for file in added if not any(part.endswith(suffixes) for part in file.parts)):
            return f"leaves {', '.join(unexpected)}"
        lost = set() if content == self._expected else self._finished - files
        return f"loses {', '.join(sorted(map(str, lost)))}" if lost else None

    def _allowed_files(self, content: dict[str, bytes] | None) -> set[Path]:
        """The files that were there, and those that belong to finished work."""
        own = {file for file in self._whole if file.is_relative_to(self._product) or file.name == f"{self._product.name}.{MANIFEST}"}
        return self._before | (self._whole if content == self._expected else self._whole - own)

    def _check_second_run(self) -> str | None:
        existing = set(map(str, Path("out").rglob("*")))
        result = run_command(self._command)
        if result.code != 0:
            return f"the next run fails: {result.code} {result.stderr!r}"
        return check_end({self._product: self._expected}, existing)
