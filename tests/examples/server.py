"""`moeir` as one long-lived process behind a socket, so that a script of sixty commands imports torch once.

    python server.py SOCKET CLIENT JOURNAL

writes an executable CLIENT that replaces `moeir`: it sends its arguments, folder and open streams to this process and exits with the code
of the command line. JOURNAL gets a JSON list of arguments for each call. Prints "ready" when it listens.
"""

import json
import os
import socket
import sys
import traceback
from pathlib import Path

CLIENT = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as line:
    line.connect({place!r})
    socket.send_fds(line, [json.dumps([os.getcwd(), *sys.argv[1:]]).encode()], [1, 2])
    line.shutdown(socket.SHUT_WR)
    answer = line.recv(1)
sys.exit(answer[0] if answer else 1)
"""


def serve(socket_path: Path, client: Path, journal: Path) -> None:
    """Run one command after the other, for ever."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(socket_path))
        listener.listen()
        client.write_text(CLIENT.format(python=sys.executable, place=str(socket_path)), encoding="utf-8")
        client.chmod(0o755)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            connection, _ = listener.accept()
            with connection:
                message, streams, _, _ = socket.recv_fds(connection, 1 << 20, 2)
                while chunk := connection.recv(1 << 20):
                    message += chunk
                folder, *arguments = json.loads(message)
                with open(journal, "a", encoding="utf-8") as calls:
                    calls.write(json.dumps(arguments) + "\n")
                connection.sendall(bytes([run_command(folder, arguments, streams)]))


def run_command(folder: str, arguments: list[str], streams: list[int]) -> int:
    """The exit code of `moeir ARGUMENTS` run in `folder`, writing to the caller's streams."""
    from moeir import cli, console

    saved = os.dup(1), os.dup(2)
    for number, stream in zip((1, 2), streams, strict=True):
        os.dup2(stream, number)
        os.close(stream)
    try:
        os.chdir(folder)
        console.configure_logging()
        return cli._exit_code(arguments)
    except Exception:  # noqa: BLE001 - a separate process would print a traceback and exit with 1
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, stream in zip((1, 2), saved, strict=True):
            os.dup2(stream, number)
            os.close(stream)


if __name__ == "__main__":
    from moeir.pretraining import task

    os.fsync = lambda descriptor: None  # as in tests/conftest.py
    task.MATRIX_SIZE["cpu"] = 64
    serve(*map(Path, sys.argv[1:]))
