"""Kill a forked child, or a command in one, just before its n-th fsync, rename, replace or removal; and a full disk."""

import functools
import itertools
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

DISK_CALLS = ("fsync", "rename", "replace", "unlink", "rmdir")
NEVER = 10**9


def fork(action: Callable[[], int | None]) -> int:
    """Fork a child, which ends with the result of `action` as its exit code, 70 after an error -> the number of the process."""
    child = os.fork()
    if child == 0:
        code = 70
        try:
            code = action() or 0
        except BaseException:  # noqa: BLE001 - nothing of the child may run the parent's tests
            traceback.print_exc(file=sys.__stderr__)
        finally:
            os._exit(code)
    return child


def each_disk_call(every: int, sample: int) -> pytest.MarkDecorator:
    """Parametrise `every`: kill at every `sample`-th disk call, with `make torture` at every `every`-th."""
    return pytest.mark.parametrize("every", [sample, pytest.param(every, marks=pytest.mark.torture)])


def kill_at(action: Callable[[], object], moment: int) -> bool:
    """Run `action` in a child and kill it at its `moment`-th disk call, counted from 0; False if it ended before that."""

    def act() -> None:
        _kill_before(moment)
        action()

    child = fork(act)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0, "the child failed before it was killed"
    return False


def kill_points(every: int = 1, first: int = 0) -> Iterator[int]:
    """Numbers of disk calls to kill at; the caller stops when the child ends unkilled."""
    yield from range(first, 1000, every)


def wrap_calls(patch: pytest.MonkeyPatch, names: Iterable[str], around: Callable[..., Any], module: object = os) -> None:
    """Let `around(name, call, *arguments, **options)` stand for functions of a module."""
    for name in names:
        patch.setattr(module, name, functools.partial(around, name, getattr(module, name)))


def _kill_before(moment: int) -> None:
    remaining = itertools.count(moment, -1)

    def kill_or_call(_: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        if next(remaining) == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*arguments, **options)

    wrap_calls(pytest.MonkeyPatch(), DISK_CALLS, kill_or_call)


class FullDisk:
    """Limit the size of files, as a full disk would, until closed; also of those that native code writes."""

    def __init__(self, folder: object = None, bytes: int = 0) -> None:
        self._limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (bytes, self._limits[1]))

    def close(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self._limits)
