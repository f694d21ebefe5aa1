"""Process groups as torchrun starts them, forked from the test process so that nothing is imported anew."""

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

UNSEEN = ("key.bias", "classifier.bias")  # gradients of rounding errors only: a softmax is invariant to them
TIMED = ("seconds", "tokens_per_second")
PORTS = iter(range(20_000 + os.getpid() % 10_000, 32_768))


def told(*arguments: object) -> dict[str, Any]:
    """The exit code and stderr of `moeir ARGUMENTS`, run in this process."""
    try:
        result = run_here(*arguments)
    except SystemExit as end:  # exits because another process has failed
        return {"code": end.code, "stderr": ""}
    return {"code": result.code, "stderr": result.stderr}


def facts(folder: Path) -> list[dict[str, float]]:
    """The metrics of each step of a training."""
    return [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]


def alike(folder: Path, other_folder: Path) -> None:
    """The metrics of every step and the weights are equal up to the order of summation."""
    one, two = facts(folder), facts(other_folder)
    assert len(one) == len(two)
    for step, other_step in zip(one, two, strict=True):
        assert step.keys() == other_step.keys()
        actual, expected = ({name: value for name, value in each.items() if name not in TIMED} for each in (step, other_step))
        assert actual == pytest.approx(expected, abs=1e-5, rel=1e-4)
        assert step["loss"] == pytest.approx(other_step["loss"], abs=1e-5, rel=2e-6)  # losses are up to 20 here, and a float32 has 7 digits
    weights, others = (load_file(one / "model.safetensors") for one in (folder, other_folder))
    for name, value in weights.items():
        if not any(one in name for one in UNSEEN):
            torch.testing.assert_close(value, others[name], atol=2e-4, rtol=0, msg=name)


def free_port() -> int:
    """A free port below the ephemeral range."""
    for port in PORTS:
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("", port))
            return port
    raise OSError("no port is free")


def together(size: int, action: Callable[[int], Any]) -> list[Any]:
    """The result of `action(rank)` in each of `size` processes, through JSON; None for a process that was killed."""
    settings = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}
    with tempfile.TemporaryDirectory() as folder:
        children = [_forked(rank, settings, action, Path(folder) / f"{rank}.json") for rank in range(size)]
        for child in children:
            os.waitpid(child, 0)
        result_files = [Path(folder) / f"{rank}.json" for rank in range(size)]
        return [json.loads(path.read_text()) if path.exists() else None for path in result_files]


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
    """Forget the parent's state of a single process."""
    torch.set_num_threads(1)
    AcceleratorState._reset_state(reset_partial_state=True)
    PartialState._reset_state()
    distributed.joined.cache_clear()
