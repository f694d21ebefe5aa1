"""Loops compiled by numba at their first call, kept beside their file or in the user's cache where one is writable.

What is kept is compiled anew when the function's own file changes, not when a file it calls into does: who changes a loop that is called
from another file saves that file too.
"""

from collections.abc import Callable
from typing import Any

import numba

numba.config.THREADING_LAYER = "workqueue"  # OpenMP's would change how many threads torch computes with, and so its rounding


def compiled(**options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """numba's `njit`, cached on disk where a folder can be written."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        try:
            fast: Callable[..., Any] = numba.njit(cache=True, **options)(function)
        except RuntimeError:  # "no locator available": nowhere to write the cache
            fast = numba.njit(**options)(function)
        return fast

    return decorate
