"""A fixture: one long-lived `moeir` process for all scripts."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.examples.shell import EXAMPLES, CommandServer


@pytest.fixture(scope="session")
def server() -> Iterator[CommandServer]:
    """`moeir` in one process for all scripts."""
    with tempfile.TemporaryDirectory(prefix="moeir-") as short:  # a socket's path may have about a hundred characters
        socket_path, journal = Path(short) / "socket", Path(short) / "journal"
        command = [sys.executable, "-m", "tests.examples.server", socket_path, short, journal]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=EXAMPLES.parent) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield CommandServer(Path(short) / "moeir", Path(short) / "python", journal)
            process.terminate()
