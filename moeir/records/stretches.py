"""The lists of a run in blocks, so that working on millions of hits takes little extra memory."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from moeir.records import loops

HITS_PER_BLOCK = 2**19  # hits


def list_blocks(starts: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """First and last list of blocks that have at most HITS_PER_BLOCK hits or are one list; starts [Q+1].

    >>> list(stretches(np.array([0, 3, 5])))
    [(0, 2)]
    """
    first = 0
    while first < len(starts) - 1:
        last = max(first + 1, int(np.searchsorted(starts, starts[first] + HITS_PER_BLOCK, side="right")) - 1)
        yield first, last
        first = last


def first_duplicate(starts: NDArray[np.int64], documents: NDArray[np.int32], rows: NDArray[np.int64] | None) -> int | None:
    """The first row whose document is on an earlier row of its list; None if there is none.

    starts [Q+1], documents [n]; rows [n]: the row numbers, if not 0 … n − 1; they ascend within a list.

    >>> repeated(np.array([0, 2, 4]), np.array([1, 2, 2, 2], np.int32), None)
    3
    """
    compiled = loops.load_for_rows(len(documents))
    if compiled and not compiled.ranking.repeats(starts, documents):
        return None
    width, duplicates = int(documents.max(initial=0)) + 1, []
    for first, last in list_blocks(starts):
        pairs = np.repeat(np.arange(last - first) * width, np.diff(starts[first : last + 1]))
        pairs += documents[starts[first] : starts[last]]
        in_order = np.sort(pairs)
        if (in_order[1:] == in_order[:-1]).any():
            order = np.argsort(pairs, kind="stable")
            repeats = order[1:][in_order[1:] == in_order[:-1]] + starts[first]
            duplicates.append(int((repeats if rows is None else rows[repeats]).min()))
    return min(duplicates, default=None)
