"""Loops compiled by numba at their first call, cached on disk beside their file or in the user's cache folder if one is writable.

The cache is invalidated when the function's own file changes, not when a file it calls into changes: after changing a loop that is called
from another file, save that file too. Loops on several threads run one at a time, whatever thread calls them: numba aborts the process
where two of them meet.
"""

import os
from collections.abc import Callable
from functools import wraps
from threading import Lock
from typing import Any

import numba
from numba.core import event

numba.config.THREADING_LAYER = "workqueue"  # OpenMP's would change torch's number of threads, and so its rounding
_compile_timer = event.TimingListener()
event.register("numba:compile", _compile_timer)
_parallel_loop = Lock()
os.register_at_fork(before=_parallel_loop.acquire, after_in_parent=_parallel_loop.release, after_in_child=_parallel_loop.release)


def read_compile_seconds() -> float:
    """Seconds that this process has spent on compiling loops; reading them from the cache is not counted."""
    return float(_compile_timer.duration) if _compile_timer.done else 0.0


def njit_cached(**options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """numba's `njit`, cached on disk if a cache folder is writable."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        try:
            fast: Callable[..., Any] = numba.njit(cache=True, **options)(function)
        except RuntimeError:  # "no locator available": no writable cache folder
            fast = numba.njit(**options)(function)

        @wraps(function)
        def run_alone(*arguments: Any) -> Any:
            with _parallel_loop:
                return fast(*arguments)

        return run_alone if options.get("parallel") else fast

    return decorate
