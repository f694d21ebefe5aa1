"""The device that these tests run on: a real CUDA device where there is one, else a pretended one; skipped where neither can be had.

The pretended device has to be there before torch is imported, so that `pytest tests/device` is a run of its own.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.conftest import Said, run_here
from tests.device import guard

REAL = guard.real_cards() > 0
REASON = ""
if not REAL:
    try:
        guard.load()
    except guard.Unavailable as problem:
        REASON = str(problem)
if guard.loaded() is None:
    collect_ignore = ["attention.py", "face.py", "pretended.py", "test_pretended.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say why nothing runs."""
    if REASON:
        for item in items:
            item.add_marker(pytest.mark.skip(reason=f"no device: {REASON}"))


def pytest_report_header() -> str:
    """What the tests run on."""
    return f"device: {'CUDA' if REAL else REASON or 'pretended'}"


@pytest.fixture(autouse=True)
def machine() -> Iterator[Any]:
    """The pretended cards, fresh for each test; None on a real device."""
    if REAL:
        yield None
        return
    import torch

    from tests.device import pretended

    with pretended.active() as cards:
        torch.manual_seed(0)
        yield cards


@pytest.fixture
def device() -> str:
    """What torch calls it."""
    return "cuda"


@pytest.fixture
def moeir_on(device: str) -> Callable[..., Said]:
    """`moeir_on("finetune", …)`: a whole command in this process, on the device unless `on` names another; what it returned and wrote."""
    from accelerate.state import AcceleratorState

    def run(*arguments: object, on: str = device, stdin: str = "") -> Said:
        AcceleratorState._reset_state(reset_partial_state=True)  # a process is of one device otherwise
        try:
            return run_here(*arguments, "--device", on, stdin=stdin)
        finally:
            AcceleratorState._reset_state(reset_partial_state=True)

    return run
