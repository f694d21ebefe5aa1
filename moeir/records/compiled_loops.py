"""Access to the compiled (numba) loops, where there are enough rows for them to save more time than loading them takes.

They give bit for bit the results of the numpy code that runs otherwise.
"""

from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

MIN_ROWS = 2**22
MIN_FILE_BYTES = 2**27  # of a file; a quarter if compressed. Compiling takes seconds: once per machine, in a fresh container each time


def load_for_rows(rows: int) -> Any:
    """The loops if there are many rows or they are loaded already, else None."""
    return _load() if rows >= MIN_ROWS or _load.cache_info().currsize else None


def load_for_file(path: Path | str) -> Any:
    """The loops if the file is big, else None; also None for a pipe, whose size is unknown."""
    file = Path(path)
    if str(path) == "-" or not file.is_file():
        return None
    expansion = 4 if file.suffix in {".gz", ".zst"} else 1
    return _load() if file.stat().st_size * expansion >= MIN_FILE_BYTES else None


def sort_lists_compiled(
    run_order: Any, starts: NDArray[np.int64], documents: NDArray[np.integer], scores: NDArray[np.float32]
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Documents and scores of lists in rank order; lists that are in order are not sorted again."""
    keys, is_unsorted = np.empty(len(documents), np.uint64), np.empty(len(starts) - 1, bool)
    run_order.make_sort_keys(starts, documents, scores, keys, is_unsorted)
    for row in np.flatnonzero(is_unsorted).tolist():
        keys[starts[row] : starts[row + 1]].sort()
    codes, exact = np.empty(len(keys), np.int32), np.empty(len(keys), np.float32)
    run_order.decode_sort_keys(keys, codes, exact)
    return codes, exact


@cache
def _load() -> Any:
    from moeir.kernels import radix_sort, run_order, trec_parser

    return SimpleNamespace(radix_sort=radix_sort, trec_parser=trec_parser, run_order=run_order)
