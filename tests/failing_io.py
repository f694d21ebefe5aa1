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
import re
import select
import socket
import struct
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

from moeir.artifacts.manifests import MANIFEST
from tests.faults import Programme, list_files
from tests.kill_points import fork
from tests.stage_scenarios import read_if_present, run_command

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
ERRORS = {
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


class Outcome(NamedTuple):
    """How a command ended: exit code, lines on stderr, and the calls of each kind that were counted; `met` if the fault took place."""

    code: int
    stderr: str
    calls: dict[str, int]
    met: str | None


class FailingCall(NamedTuple):
    """The `number`-th call of a kind fails with an error of the system, a full disk from then on; number 0: none fails."""

    kind: str
    number: int
    error: int

    def __str__(self) -> str:
        return f"{self.kind} {self.number} {errno.errorcode.get(self.error, 'short')}"

    @property
    def row(self) -> str:
        """The kind of call and the error."""
        return f"{self.kind} {errno.errorcode.get(self.error, 'short')}"

    def check(self, programme: Programme) -> str | None:
        """Run the command with the fault, and again without."""
        outcome = run_failing(programme, self)
        programme.counts[self.row, "faults"] += bool(outcome.met)
        programme.counts[self.row, "refusals"] += bool(outcome.code)
        problem = self.check_outcome(programme, outcome) or programme.run_again(max_refusals=0)
        return problem and f"of {outcome.met}: {problem}"

    def check_outcome(self, programme: Programme, outcome: Outcome) -> str | None:
        """What is wrong with the end of the command and with what it leaves."""
        (product,) = programme.products
        content, expected, earlier = read_if_present(product), programme.expected[product], programme.earlier[product]
        if outcome.code == 0:
            is_told = re.search("is finished, but a file beside it cannot be removed|could not be removed whole", outcome.stderr)
            if outcome.met and self.kind == "fsync" and not is_told:  # another call may be tried again, or in another way
                return "the command passes over it"
            return None if content == expected else "exit code 0, but another product"
        errors = [line for line in outcome.stderr.splitlines() if line.startswith("error: ")]
        if outcome.code not in (1, 2, 3, 4) or len(errors) != 1 or outcome.met is None:
            return f"not a refusal of one line: {outcome.code} {outcome.stderr!r}"
        reasons = {os.strerror(self.error), *(["out of memory"] if self.error == errno.ENOMEM else [])}
        if self.kind == "open" and outcome.met.endswith(".safetensors"):
            reasons.add(os.strerror(errno.ENOENT))  # safetensors' word for it, after our own open went well
        if not any(reason in errors[0] for reason in reasons):
            return f"does not say why: {outcome.code} {errors[0]!r}"
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
    """Each call of the command, with each error if it changes the disk, else with one of them in turn."""
    nothing = FailingCall("", 0, 0)
    with programme.copy("counted"):
        outcome = run_failing(programme, nothing)
        assert outcome.met is None and nothing.check_outcome(programme, outcome) is None, outcome
    calls = []
    for kind, errors in ERRORS.items():
        for number in range(outcome.calls.get(kind, 0)):
            chosen = errors if kind in CHANGING else errors[number % len(errors) :][:1]
            calls += [FailingCall(kind, number + 1, error) for error in chosen]
    return calls


@cache
def is_supported() -> bool:
    """Whether system calls can be stopped here."""
    if not sys.platform.startswith("linux") or platform.machine() != "x86_64":
        return False

    def stop_calls() -> int:
        with suppress(OSError):
            os.close(_stop_calls())
            return 0
        return 1

    return os.waitstatus_to_exitcode(os.waitpid(fork(stop_calls), 0)[1]) == 0


def run_failing(programme: Programme, fault: FailingCall) -> Outcome:
    """Run the command of a programme in a child in which a call on a file in the programme's folder fails."""
    ours, theirs = socket.socketpair()
    (command,) = programme.commands

    def run() -> None:
        os.fsync = sys.modules["posix"].fsync
        listener = _stop_calls()
        socket.send_fds(theirs, [b"x"], [listener])
        os.close(listener)
        result = run_command(command)
        theirs.sendall(json.dumps((result.code, "\n".join(result.messages))).encode())

    child = fork(run)
    theirs.close()
    with ours:
        listener = socket.recv_fds(ours, 1, 1)[1][0]
        supervisor = _Supervisor(child, programme.root.resolve(), fault)
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

    def __init__(self, child: int, folder: Path, fault: FailingCall) -> None:
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
