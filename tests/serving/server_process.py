"""A server in a process of its own, for tests of signals, sockets and browsers."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

ROOT = Path(__file__).parents[2]


@contextmanager
def run_server(index: Path, *flags: object) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A server in a process of its own, and its port."""
    pytest.importorskip("uvicorn", reason="needs the extra serve")
    command = [sys.executable, "-m", "moeir", "serve", "--index", str(index), "--port", "0", *map(str, flags)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"}, cwd=ROOT)
    assert process.stderr is not None
    line = next(line for line in process.stderr if "http://" in line)
    try:
        yield process, int(re.findall(r"http://127\.0\.0\.1:(\d+)/", line)[0])
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def fetch(port: int, path: str = "/health", body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = Request(f"http://127.0.0.1:{port}{path}", data=data, headers={"content-type": "application/json"})
    with urlopen(request, timeout=60) as reply:
        return json.load(reply)
