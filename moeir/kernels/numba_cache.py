"""Loops compiled by numba at their first call, cached on disk beside their file or in the user's cache folder if one is writable.

The cache is invalidated when the function's own file changes, not when a file it calls into changes: after changing a loop that is called
from another file, save that file too. Threads are those of the caller, not numba's, which aborts the process where two parallel loops meet.
"""

from collections.abc import Callable
from typing import Any

import numba
from numba.core import event

numba.config.THREADING_LAYER = "workqueue"  # OpenMP's would change torch's number of threads, and so its rounding
_compile_timer = event.TimingListener()
event.register("numba:compile", _compile_timer)


def read_compile_seconds() -> float:
    """Seconds that this process has spent on compiling loops; reading them from the cache is not counted."""
    return float(_compile_timer.duration) if _compile_timer.done else 0.0


def njit_cached(**options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """numba's `njit`, cached on disk if a cache folder is writable."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        try:
            compiled: Callable[..., Any] = numba.njit(cache=True, **options)(function)
        except RuntimeError:  # "no locator available": no writable cache folder
            compiled = numba.njit(**options)(function)
        return compiled

    return decorate
