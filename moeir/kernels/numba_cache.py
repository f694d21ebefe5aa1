"""Loops compiled by numba at their first call, cached on disk beside their file or in the user's cache folder if one is writable.

The cache is invalidated when the function's own file changes, not when a file it calls into changes: after changing a loop that is called
from another file, save that file too.
"""

from collections.abc import Callable
from typing import Any

import numba

numba.config.THREADING_LAYER = "workqueue"  # OpenMP's would change torch's number of threads, and so its rounding


def njit_cached(**options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """numba's `njit`, cached on disk if a cache folder is writable."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        try:
            fast: Callable[..., Any] = numba.njit(cache=True, **options)(function)
        except RuntimeError:  # "no locator available": no writable cache folder
            fast = numba.njit(**options)(function)
        return fast

    return decorate
