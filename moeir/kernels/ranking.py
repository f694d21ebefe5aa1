"""Ranked lists end to end: their hits as sortable numbers, documents that stand twice, and the union of several systems' lists."""

from typing import Any

import numpy as np

from moeir.kernels.compiling import compiled

_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_SIGN = np.uint32(0x80000000)
_REST = np.uint32(0x7FFFFFFF)


@compiled()
def in_order(starts: Any, documents: Any, scores: Any) -> bool:
    """Whether scores fall in every list and, where they are equal, documents do, and none is minus zero."""
    bits = scores.view(np.uint32)
    for one in range(len(starts) - 1):
        for row in range(starts[one], starts[one + 1]):
            if bits[row] == _SIGN:
                return False
            if row > starts[one] and (
                scores[row] > scores[row - 1] or (scores[row] == scores[row - 1] and documents[row] > documents[row - 1])
            ):
                return False
    return True


@compiled()
def keyed(starts: Any, documents: Any, scores: Any, keys: Any, late: Any) -> None:
    """A number a hit [n] that ascends as scores fall and, where they are equal, as documents do; late [Q]: lists not in that order."""
    bits = (scores + np.float32(0)).view(np.uint32)  # minus zero becomes zero
    for one in range(len(starts) - 1):
        before = np.uint64(0)
        late[one] = False
        for row in range(starts[one], starts[one + 1]):
            falling = bits[row] if bits[row] & _SIGN else bits[row] ^ _REST
            key = np.uint64(falling) << _HALF | (_LOW - np.uint64(documents[row]))
            late[one] |= key < before
            keys[row] = before = key


@compiled()
def unkeyed(keys: Any, documents: Any, scores: Any) -> None:
    """The documents and scores [n] that such numbers stand for."""
    bits = scores.view(np.uint32)
    for row in range(len(keys)):
        falling = np.uint32(keys[row] >> _HALF)
        bits[row] = falling if falling & _SIGN else falling ^ _REST
        documents[row] = np.int32(_LOW - (keys[row] & _LOW))


@compiled()
def repeats(starts: Any, documents: Any) -> bool:
    """Whether a document stands twice in one of the lists."""
    seen = np.zeros(64, np.int64)
    for one in range(len(starts) - 1):
        size = starts[one + 1] - starts[one]
        if 2 * size > len(seen):
            room = len(seen)
            while 2 * size > room:
                room *= 2
            seen = np.zeros(room, np.int64)
        last, own = len(seen) - 1, (one + 1) << 32  # what other lists left is of another number
        for row in range(starts[one], starts[one + 1]):
            slot = (documents[row] * 0x9E3779B1 >> 7) & last
            while seen[slot] >> 32 == one + 1:
                if seen[slot] == own | documents[row]:
                    return True
                slot = (slot + 1) & last
            seen[slot] = own | documents[row]
    return False


@compiled()
def spread(keys: Any, first: int, width: int, offsets: Any, values: Any, missing: Any, documents: Any, columns: Any) -> int:
    """The union [n], ascending, and columns [E, n]: values, or missing [E, Q]; how many documents.

    keys ascend: documents, with their query's place · width, above places in values, of `first` bits; offsets [E + 1]: whose those are.
    """
    count, query, before, rows = 0, 0, np.int64(-1), np.uint64((1 << first) - 1)
    for place in range(len(keys)):
        document, row = np.int64(keys[place] >> np.uint64(first)), np.int64(keys[place] & rows)
        if document != before:
            while document >= (query + 1) * width:
                query += 1
            documents[count] = document
            for system in range(len(columns)):
                columns[system, count] = missing[system, query]
            before, count = document, count + 1
        own = 0
        for system in range(1, len(columns)):
            own += row >= offsets[system]  # a sum, as the branch could not be foreseen
        columns[own, count - 1] = values[row]
    return count
