"""Sudden death at a chosen moment: a forked child is killed just before its n-th fsync, rename or replace."""

import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

MOMENTS = ("fsync", "rename", "replace")


def died(action: Callable[[], object], moment: int) -> bool:
    """Whether a child that carries out `action` reached its `moment`-th disk event, counted from 0, and was killed there."""
    child = os.fork()
    if child == 0:
        code = 70
        try:
            _arm(moment)
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


def deaths(every: int = 1, first: int = 0) -> Iterator[int]:
    """Moments to die at; the caller stops when nobody dies any more."""
    yield from range(first, 1000, every)


def _arm(moment: int) -> None:
    seen = 0

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def instead(*arguments: Any, **options: Any) -> Any:
            nonlocal seen
            if seen == moment:
                os.kill(os.getpid(), signal.SIGKILL)
            seen += 1
            return call(*arguments, **options)

        return instead

    for name in MOMENTS:
        setattr(os, name, counted(getattr(os, name)))
