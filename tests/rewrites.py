"""A process that makes products again and again while others read them: `python -m tests.rewrites JSON`, commands one after the other."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.conftest import run_in_process

SECONDS_TO_BEGIN = 120.0


@contextmanager
def rewriting(log: Path, *commands: Sequence[object]) -> Iterator[None]:
    """Run commands of moeir in turn, in a process of its own, until the block ends; `log` has a line for each that has ended."""
    log.touch()
    words = json.dumps([[str(word) for word in command] for command in commands])
    with subprocess.Popen([sys.executable, "-m", "tests.rewrites", str(log), words]) as process:
        try:
            began = time.monotonic()
            while count_rewrites(log) < len(commands) and process.poll() is None and time.monotonic() - began < SECONDS_TO_BEGIN:
                time.sleep(0.05)
            yield
            assert process.poll() is None, "the process that writes ended before its readers"
        finally:
            process.kill()


def count_rewrites(log: Path) -> int:
    """How many commands have ended."""
    return len(log.read_text().splitlines())


def main(log: str, words: str) -> None:
    """Run the commands in turn without end; another exit code than 0 ends it."""
    commands = json.loads(words)
    while True:
        for command in commands:
            result = run_in_process(*command)
            assert result.code == 0, result.stderr
            with open(log, "a") as file:
                file.write("made\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
