"""Ranked lists stored end to end: hits as sortable keys, detection of duplicate documents, and the union of several systems' lists."""

from typing import Any

import numpy as np

from moeir.kernels.numba_cache import njit_cached

_HALF_BITS = np.uint64(32)
_LOW_MASK = np.uint64(0xFFFFFFFF)
_SIGN_BIT = np.uint32(0x80000000)
_MAGNITUDE_MASK = np.uint32(0x7FFFFFFF)


@njit_cached()
def is_sorted(starts: Any, documents: Any, scores: Any) -> bool:
    """Whether every list is sorted by score and then document, both descending, without a score of minus zero."""
    bits = scores.view(np.uint32)
    for query in range(len(starts) - 1):
        for row in range(starts[query], starts[query + 1]):
            if bits[row] == _SIGN_BIT:
                return False
            if row > starts[query] and (
                scores[row] > scores[row - 1] or (scores[row] == scores[row - 1] and documents[row] > documents[row - 1])
            ):
                return False
    return True


@njit_cached()
def make_sort_keys(starts: Any, documents: Any, scores: Any, keys: Any, unordered: Any) -> None:
    """Write a sort key per hit [n]: ascending keys are descending scores, then descending documents; unordered [Q]: lists out of order."""
    bits = (scores + np.float32(0)).view(np.uint32)  # minus zero becomes zero
    for query in range(len(starts) - 1):
        previous = np.uint64(0)
        unordered[query] = False
        for row in range(starts[query], starts[query + 1]):
            descending_bits = bits[row] if bits[row] & _SIGN_BIT else bits[row] ^ _MAGNITUDE_MASK
            key = np.uint64(descending_bits) << _HALF_BITS | (_LOW_MASK - np.uint64(documents[row]))
            unordered[query] |= key < previous
            keys[row] = previous = key


@njit_cached()
def decode_sort_keys(keys: Any, documents: Any, scores: Any) -> None:
    """Decode sort keys to documents and scores [n]."""
    bits = scores.view(np.uint32)
    for row in range(len(keys)):
        descending_bits = np.uint32(keys[row] >> _HALF_BITS)
        bits[row] = descending_bits if descending_bits & _SIGN_BIT else descending_bits ^ _MAGNITUDE_MASK
        documents[row] = np.int32(_LOW_MASK - (keys[row] & _LOW_MASK))


@njit_cached()
def has_duplicates(starts: Any, documents: Any) -> bool:
    """Whether a list contains a document twice."""
    table = np.zeros(64, np.int64)
    for query in range(len(starts) - 1):
        size = starts[query + 1] - starts[query]
        if 2 * size > len(table):
            capacity = len(table)
            while 2 * size > capacity:
                capacity *= 2
            table = np.zeros(capacity, np.int64)
        last, tag = len(table) - 1, (query + 1) << 32  # entries of earlier lists have another tag
        for row in range(starts[query], starts[query + 1]):
            slot = (documents[row] * 0x9E3779B1 >> 7) & last
            while table[slot] >> 32 == query + 1:
                if table[slot] == tag | documents[row]:
                    return True
                slot = (slot + 1) & last
            table[slot] = tag | documents[row]
    return False


@njit_cached()
def merge_union(keys: Any, first: int, width: int, offsets: Any, values: Any, missing: Any, documents: Any, columns: Any) -> int:
    """Write the union of documents [n], ascending, and columns [E, n]: values, or missing [E, Q]; return the number of documents.

    keys ascend: (query index · width + document) above the `first` low bits, which are the row in values; offsets [E + 1]: rows by system.
    """
    count, query, previous, rows = 0, 0, np.int64(-1), np.uint64((1 << first) - 1)
    for index in range(len(keys)):
        document, row = np.int64(keys[index] >> np.uint64(first)), np.int64(keys[index] & rows)
        if document != previous:
            while document >= (query + 1) * width:
                query += 1
            documents[count] = document
            for system in range(len(columns)):
                columns[system, count] = missing[system, query]
            previous, count = document, count + 1
        source = 0
        for system in range(1, len(columns)):
            source += row >= offsets[system]  # a sum, since a branch would be unpredictable
        columns[source, count - 1] = values[row]
    return count
