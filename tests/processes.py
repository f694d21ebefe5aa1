"""Distributed training in processes forked from the test's: as torchrun starts them, without loading everything again."""

import json
import os
import shutil
import socket
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from moeir import distributed
from moeir.analysis.training_monitor import METRICS_FILE
from moeir.architectures import initialize
from tests.conftest import run_in_process
from tests.kill_points import fork

ZERO_GRADIENT = ("key.bias", "classifier.bias")  # a softmax is invariant to them: their gradient is only rounding error
TIMINGS = ("seconds", "tokens_per_second")
PORTS_EACH = 32  # of a worker of pytest: neighbouring workers that took the same port would mix their processes, which then wait for ever
FIRST_PORT = 20_000 + os.getpid() % 399 * PORTS_EACH  # below the ephemeral ports
PORTS = cycle(range(FIRST_PORT, FIRST_PORT + PORTS_EACH))


def run_captured(*arguments: object) -> dict[str, Any]:
    """Run `moeir ARGUMENTS` in this process and return its exit code and stderr."""
    try:
        result = run_in_process(*arguments)
    except SystemExit as end:  # exits because another process failed
        return {"code": end.code, "stderr": ""}
    return {"code": result.code, "stderr": result.stderr}


def change_trunk_of_process_1(trunk: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let process 1 build its checkpoint over a copy of the trunk whose weights are the same, and whose config.json has another epsilon: no
    sum of weights shows that."""
    other, open_weights = shutil.copytree(trunk, folder / "other"), initialize.open_weights
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"layer_norm_eps": 1e-3}))

    def open_other(model: Path, *arguments: Any, **options: Any) -> Any:
        return open_weights(other if os.environ.get("RANK") == "1" else model, *arguments, **options)

    monkeypatch.setattr(initialize, "open_weights", open_other)


def read_metrics(folder: Path) -> list[dict[str, float]]:
    """The metrics of each training step."""
    return [json.loads(line) for line in (folder / METRICS_FILE).read_text().splitlines()]


def assert_same_training(one_folder: Path, other_folder: Path) -> None:
    """Assert that the metrics of every step and the weights agree up to the order of summation."""
    one, two = read_metrics(one_folder), read_metrics(other_folder)
    assert len(one) == len(two)
    for step, again in zip(one, two, strict=True):
        assert step.keys() == again.keys()
        values, expected = ({name: value for name, value in each.items() if name not in TIMINGS} for each in (step, again))
        assert values == pytest.approx(expected, abs=1e-5, rel=1e-4)
        assert step["loss"] == pytest.approx(again["loss"], abs=1e-5, rel=2e-6)  # losses are up to 20 here, and a float32 has 7 digits
    weights, others = (load_file(folder / "model.safetensors") for folder in (one_folder, other_folder))
    for name, value in weights.items():
        if not any(one in name for one in ZERO_GRADIENT):
            torch.testing.assert_close(value, others[name], atol=2e-4, rtol=0, msg=name)


def free_port() -> int:
    """A free port of this worker's own."""
    for port in islice(PORTS, PORTS_EACH):
        with socket.socket() as listener, suppress(OSError):
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # also after a test's connections, as torch listens
            listener.bind(("", port))
            return port
    raise OSError("no port is free")


def run_processes(size: int, action: Callable[[int], Any]) -> list[Any]:
    """Run `action(rank)` in each of `size` processes and return the results (as JSON values); None for a process that failed."""
    settings = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}
    with tempfile.TemporaryDirectory() as folder:
        children = [fork(partial(_act_as_rank, rank, settings, action, Path(folder) / f"{rank}.json")) for rank in range(size)]
        for child in children:
            os.waitpid(child, 0)
        results = [Path(folder) / f"{rank}.json" for rank in range(size)]
        return [json.loads(path.read_text()) if path.exists() else None for path in results]


def _act_as_rank(rank: int, settings: dict[str, str], action: Callable[[int], Any], answer: Path) -> None:
    os.environ |= settings | {"RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"}
    reset_process_state()
    answer.write_text(json.dumps(action(rank)))


def reset_process_state() -> None:
    """Reset the parent's single-process state."""
    torch.set_num_threads(1)
    distributed.init_process_group.cache_clear()
