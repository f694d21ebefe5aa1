"""`moeir` and `python` as one long-lived process behind a socket, so that a script of sixty commands imports nothing.

The process is forked from that of the tests, which has imported everything. Two executables replace the programs: each sends its arguments,
folder, variables and open streams to this process and exits with the code of the command line, or of the program; `python -c` is left to
Python itself. A journal gets a JSON list of arguments for each call of `moeir`.
"""

import json
import os
import runpy
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from tests.conftest import keep_commands
from tests.processes import reset_process_state

CLIENT = """#!{python} -IS
import _socket, posix, sys  # what the interpreter has built in: json and socket take longer to import than many a command
if {name!r} == "python" and sys.argv[1] == "-":
    sys.argv[1] = {place!r} + str(posix.getpid()) + ".py"
    with open(sys.argv[1], "wb") as program:
        program.write(sys.stdin.buffer.read())
if {name!r} == "python" and not sys.argv[1].endswith(".py"):
    posix.execv({python!r}, [{python!r}, *sys.argv[1:]])
line = _socket.socket(_socket.AF_UNIX)
line.connect({place!r})
variables = [name + b"=" + value for name, value in posix.environ.items()]
words = [{name!r}.encode(), posix.getcwdb(), str(len(variables)).encode(), *variables, *(word.encode() for word in sys.argv[1:])]
streams = b"".join(number.to_bytes(4, sys.byteorder) for number in (1, 2))
line.sendmsg([b"\\0".join(words)], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
line.shutdown(_socket.SHUT_WR)
answer = line.recv(1)
sys.exit(answer[0] if answer else 1)
"""


def write_clients(folder: Path, socket_path: Path) -> None:
    """Write the executables `moeir` and `python`."""
    for name in ("moeir", "python"):
        (folder / name).write_text(CLIENT.format(python=sys.executable, place=str(socket_path), name=name), encoding="utf-8")
        (folder / name).chmod(0o755)


def serve(listener: socket.socket, journal: Path) -> None:
    """Run one command after the other, for ever, in a forked process."""
    leave_parent(listener.fileno())
    while True:
        connection, _ = listener.accept()
        with connection:
            message, streams, _, _ = socket.recv_fds(connection, 1 << 20, 2)
            while chunk := connection.recv(1 << 20):
                message += chunk
            name, folder, count, *words = message.decode().split("\0")
            variables = dict(word.split("=", 1) for word in words[: int(count)])
            arguments = words[int(count) :]
            if name == "moeir":
                with open(journal, "a", encoding="utf-8") as calls:
                    calls.write(json.dumps(arguments) + "\n")
            work = run_program if name == "python" else run_command
            connection.sendall(bytes([call(work, folder, variables, arguments, streams)]))


def leave_parent(kept: int) -> None:
    """Close the files of the tests' process but for one, and write to standard streams that are not pytest's."""
    os.closerange(3, kept)
    os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))
    _, writer = os.pipe()  # no file, in which Python would look for its position
    os.dup2(os.dup2(writer, 1), 2)
    sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    keep_commands()
    reset_process_state()


def run_command(arguments: list[str]) -> int:
    """The exit code of `moeir ARGUMENTS`."""
    from moeir import cli

    return cli._exit_code(arguments)


def run_program(arguments: list[str]) -> int:
    """The exit code of `python ARGUMENTS`."""
    before, sys.argv = (sys.argv, list(sys.path)), arguments
    sys.path.insert(0, str(Path(arguments[0]).resolve().parent))
    try:
        runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(end.code + "\n")
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.argv, sys.path[:] = before
    return 0


def call(work: Callable[[list[str]], int], folder: str, variables: dict[str, str], arguments: list[str], streams: list[int]) -> int:
    """The exit code of a command or a program run in `folder` with the caller's variables, writing to its streams."""
    from moeir import console

    saved, own = (os.dup(1), os.dup(2)), dict(os.environ)
    for number, stream in zip((1, 2), streams, strict=True):
        os.dup2(stream, number)
        os.close(stream)
    try:
        os.chdir(folder)
        os.environ.update(variables)
        console.configure_logging()
        return work(arguments)
    except Exception:  # noqa: BLE001 - a separate process would print a traceback and exit with 1
        traceback.print_exc()
        return 1
    finally:
        os.environ.clear()
        os.environ.update(own)
        sys.stdout.flush()
        sys.stderr.flush()
        for number, stream in zip((1, 2), saved, strict=True):
            os.dup2(stream, number)
            os.close(stream)
