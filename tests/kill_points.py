"""Kill a forked child, or a command in one, just before its n-th fsync, rename, replace or removal."""

import importlib
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import run_in_process

DISK_CALLS = ("fsync", "rename", "replace", "unlink", "rmdir")
NEVER = 10**9


def each_disk_call(every: int, sample: int) -> pytest.MarkDecorator:
    """Parametrise `every`: kill at every `sample`-th disk call, with `make torture` at every `every`-th."""
    return pytest.mark.parametrize("every", [sample, pytest.param(every, marks=pytest.mark.torture)])


def kill_command(folder: Path, every: int, *arguments: object, first: int = 0, suffix: str = "") -> list[Path]:
    """Kill `moeir ARGUMENTS` at every `every`-th of its disk calls, in a forked child, which has what the test has patched; the output
    paths."""
    folder.mkdir()
    names = folder.with_name(f"{folder.name}-names")

    def kill_all() -> None:
        _kill_repeatedly([str(argument) for argument in arguments], folder, suffix, kill_points(every, first), names)

    names.touch()
    kill_at(kill_all, NEVER)
    return [folder / name for name in names.read_text(encoding="utf-8").split()]


def _kill_repeatedly(arguments: list[str], folder: Path, suffix: str, moments: Iterator[int], names: Path) -> None:
    """The part of `kill_command` in the child: write the name of each output whose command was killed into the file `names`."""

    def run(name: str) -> None:
        result = run_in_process(*arguments, "--output", folder / name)
        assert result.code == 0, result.stderr

    _import_modules_of(lambda: run(f"undisturbed{suffix}"))
    for moment in moments:
        name = f"{moment}{suffix}"
        if "--force" in arguments:
            kill_at(lambda name=name: run(name), NEVER)
        if not kill_at(lambda name=name: run(name), moment):
            break
        with open(names, "a", encoding="utf-8") as file:
            file.write(f"{name}\n")


def _import_modules_of(action: Callable[[], object]) -> None:
    """Import the modules that `action` loads, so that forked children need not; it runs in a child, as it may start threads."""
    with tempfile.TemporaryFile("w+") as modules:

        def list_modules() -> None:
            action()
            modules.write("\n".join(sys.modules))
            modules.flush()

        kill_at(list_modules, NEVER)
        modules.seek(0)
        for name in modules.read().splitlines():
            with suppress(Exception):
                importlib.import_module(name)


def kill_at(action: Callable[[], object], moment: int) -> bool:
    """Run `action` in a child and kill it at its `moment`-th disk call, counted from 0; False if it ended before that."""
    child = os.fork()
    if child == 0:
        code = 70
        try:
            _kill_before(moment)
            action()
            code = 0
        except BaseException:  # noqa: BLE001 - nothing of the child may run the parent's tests
            traceback.print_exc(file=sys.__stderr__)
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0, "the child failed before it was killed"
    return False


def kill_points(every: int = 1, first: int = 0) -> Iterator[int]:
    """Numbers of disk calls to kill at; the caller stops when the child ends unkilled."""
    yield from range(first, 1000, every)


def _kill_before(moment: int) -> None:
    calls = 0

    def count(call: Callable[..., Any]) -> Callable[..., Any]:
        def counting_call(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            if calls == moment:
                os.kill(os.getpid(), signal.SIGKILL)
            calls += 1
            return call(*arguments, **options)

        return counting_call

    for name in DISK_CALLS:
        setattr(os, name, count(getattr(os, name)))
