"""Compiled search over postings. A scan of 8-bit impacts finds the documents that can be among the best K of a query.

The scan rounds a weight up to one of 255 steps of its term's largest weight, so it is at most `error` too high: the documents whose scan
is at least the K-th best scan − `error` contain the best K. Each of these candidates is scored from its own weights, as chosen pairs are.

A score is the float64 sum of the products of weights, terms ascending, rounded to float32: the same bits for any batch and thread.
"""

from typing import Any

import numpy as np

from moeir.kernels.numba_cache import njit_cached

MAX_SCAN = 2**16 - 1  # largest scan value, uint16
SCAN_BLOCK = 64  # scans compared at once
BIN_BITS = 4  # a histogram bin is 2^BIN_BITS scan values wide


@njit_cached(nogil=True)
def scan_windows(
    lists: Any, windows: Any, begins: Any, ends: Any, offsets: Any, steps: Any, terms: Any, table: Any, error: int,
    first: int, stride: int, depth: int, sums: Any, rows: Any, scans: Any,
) -> Any:  # fmt: skip
    """Fill rows int32 [N] and scans [N] with candidates for the best `depth` documents of every stride-th window, which `sums` holds.

    table uint16 [n, 256] is what each step of each term adds to a scan. Returns how many candidates there are, and a scan that at least
    `depth` of them reach, or 0.
    """
    bins, best, above, count = np.zeros((MAX_SCAN >> BIN_BITS) + 1, np.int64), 0, 0, 0  # `above` scans are in the bins from `best` on
    cursors = lists[terms]
    for window in range(first, (len(rows) + len(sums) - 1) // len(sums), stride):
        sums[:] = 0
        for i in range(len(terms)):
            cursor, last = cursors[i], lists[terms[i] + 1]
            while cursor < last and windows[cursor] < window:
                cursor += 1
            cursors[i] = cursor
            if cursor < last and windows[cursor] == window:
                _add_postings(offsets, steps, begins[cursor], ends[cursor], table[i], sums)
        for begin in range(0, len(sums), SCAN_BLOCK):
            least = max(1, (best << BIN_BITS) - error)
            if _find_largest(sums[begin : begin + SCAN_BLOCK]) < least:
                continue
            for offset in range(begin, begin + SCAN_BLOCK):
                scan = int(sums[offset])
                if scan >= least:
                    rows[count], scans[count] = window * len(sums) + offset, scan
                    count += 1
                    if scan >> BIN_BITS >= best:
                        bins[scan >> BIN_BITS] += 1
                        above += 1
            while above - bins[best] >= depth:
                above -= bins[best]
                best += 1
    return count, best << BIN_BITS


@njit_cached()
def _add_postings(offsets: Any, steps: Any, begin: int, end: int, added: Any, sums: Any) -> None:
    """Add the postings of one list to the scans of its window."""
    for posting in range(begin, end):
        sums[offsets[posting]] += added[steps[posting]]


@njit_cached()
def _find_largest(scans: Any) -> Any:
    """The largest of scans [n]; by itself, the compiler compares many at once."""
    largest = np.uint16(0)
    for i in range(len(scans)):
        largest = max(largest, scans[i])
    return largest


@njit_cached(nogil=True)
def score_rows(rows: Any, starts: Any, terms: Any, weights: Any, is_query_term: Any, query_weights: Any, scores: Any) -> None:
    """Scores of the documents rows [n] -> float32 [n], NaN for one that shares no term with the query.

    is_query_term bool [V], for the nearest cache, and query_weights float64 [V].
    """
    for i in range(len(rows)):
        total, is_shared = 0.0, False
        for entry in range(starts[rows[i]], starts[rows[i] + 1]):
            term = terms[entry]
            if is_query_term[term]:
                total += query_weights[term] * np.float64(weights[entry])
                is_shared = True
        scores[i] = np.float32(total + 0.0) if is_shared else np.nan  # −0 becomes 0
