"""Several processes that train as one, forked from the tests': what torchrun starts, without loading everything anew."""

import json
import os
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.state import AcceleratorState, PartialState
from safetensors.torch import load_file

from moeir.analysis.watching import METRICS
from moeir.learning import distributed
from tests.conftest import run_here

UNSEEN = ("key.bias", "classifier.bias")  # whose gradient is nothing but rounding: a softmax does not see it
TIMED = ("seconds", "tokens_per_second")
PORTS = iter(range(20_000 + os.getpid() % 10_000, 32_768))


def told(*arguments: object) -> dict[str, Any]:
    """The exit code of `moeir ARGUMENTS` in this process, and what it has said."""
    try:
        said = run_here(*arguments)
    except SystemExit as end:  # one that leaves because another has failed
        return {"code": end.code, "stderr": ""}
    return {"code": said.code, "stderr": said.stderr}


def facts(place: Path) -> list[dict[str, float]]:
    """What happened at each step of a training."""
    return [json.loads(line) for line in (place / METRICS).read_text().splitlines()]


def alike(place: Path, other: Path) -> None:
    """Every number of every step, and the weights, within what another order of summation makes of them."""
    one, two = facts(place), facts(other)
    assert len(one) == len(two)
    for step, again in zip(one, two, strict=True):
        assert step.keys() == again.keys()
        said, expected = ({name: value for name, value in each.items() if name not in TIMED} for each in (step, again))
        assert said == pytest.approx(expected, abs=1e-5, rel=1e-4)
        assert step["loss"] == pytest.approx(again["loss"], abs=1e-5, rel=2e-6)  # losses are up to 20 here, and a float32 has 7 digits
    weights, others = (load_file(folder / "model.safetensors") for folder in (place, other))
    for name, value in weights.items():
        if not any(one in name for one in UNSEEN):
            torch.testing.assert_close(value, others[name], atol=2e-4, rtol=0, msg=name)


def free_port() -> int:
    """A port that nobody listens at, below those that whoever asks for any is given."""
    for port in PORTS:
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("", port))
            return port
    raise OSError("no port is free")


def together(size: int, action: Callable[[int], Any]) -> list[Any]:
    """What `action(rank)` returns in each of `size` processes, as JSON holds it; None from one that has died."""
    settings = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}
    with tempfile.TemporaryDirectory() as folder:
        children = [_forked(rank, settings, action, Path(folder) / f"{rank}.json") for rank in range(size)]
        for child in children:
            os.waitpid(child, 0)
        found = [Path(folder) / f"{rank}.json" for rank in range(size)]
        return [json.loads(path.read_text()) if path.exists() else None for path in found]


def _forked(rank: int, settings: dict[str, str], action: Callable[[int], Any], answer: Path) -> int:
    child = os.fork()
    if child:
        return child
    try:
        os.environ |= settings | {"RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"}
        _forget()
        answer.write_text(json.dumps(action(rank)))
    except BaseException:  # noqa: BLE001 - nothing of the child may run the parent's tests
        traceback.print_exc(file=sys.__stderr__)
    finally:
        os._exit(0)
    return child


def _forget() -> None:
    """What the parent knows of being alone."""
    torch.set_num_threads(1)
    AcceleratorState._reset_state(reset_partial_state=True)
    PartialState._reset_state()
    distributed.joined.cache_clear()
