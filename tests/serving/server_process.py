"""A server in a process of its own, for tests of signals, sockets and browsers."""

import json
import multiprocessing
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from moeir import cli

ROOT = Path(__file__).parents[2]


@contextmanager
def run_server(index: Path, *flags: object) -> Iterator[tuple[BaseProcess, int]]:
    """A server in a process forked from this one, which has imported its libraries, and its port."""
    pytest.importorskip("moeir.serving.app", reason="needs the extra serve")
    reader, writer = os.pipe()
    command = ["moeir", "serve", "--index", str(index), "--port", "0", *map(str, flags)]
    process = multiprocessing.get_context("fork").Process(target=_serve, args=(writer, command), daemon=True)
    process.start()
    os.close(writer)
    try:
        with open(reader, encoding="utf-8") as messages:
            line = next(line for line in messages if "http://" in line)
            yield process, int(re.findall(r"http://127\.0\.0\.1:(\d+)/", line)[0])
    finally:
        process.kill()
        process.join()


def _serve(errors: int, command: list[str]) -> None:
    os.dup2(errors, 2)
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115 - until the process ends
    sys.argv = command
    cli.main()


def fetch(port: int, path: str = "/health", body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = Request(f"http://127.0.0.1:{port}{path}", data=data, headers={"content-type": "application/json"})
    with urlopen(request, timeout=60) as reply:
        return json.load(reply)
