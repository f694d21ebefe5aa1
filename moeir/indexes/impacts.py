"""Search over postings. First a scan of 8-bit impacts finds the documents that can be among the best K.

The scan rounds a weight up to one of 255 steps of its term's largest weight, so its error is bounded: at most `error` too high from
rounding, at most `omitted` too low from postings of small steps that were skipped. However many are skipped, the documents with
scan + `omitted` ≥ K-th best scan − `error` contain the best K (MaxScore's argument, Turtle and Flood 1995, over impact-ordered lists, Anh
and Moffat 2006). How much is skipped is chosen from the first window's scans; it affects only the time.
"""

from typing import Any

import numpy as np

from moeir.kernels.compiling import njit_cached

STEPS = 255
MAX_SCAN = 2**16 - 1  # largest scan value, uint16
SCAN_BLOCK = 64  # scans compared at once
BIN_BITS = 4  # a histogram bin is 2^BIN_BITS scan values wide
CUTOFF_GRID = 8  # cutoffs are multiples of so many steps
SAMPLE_EVERY = 8  # the histogram counts one of so many blocks
CANDIDATE_COST = 400  # scoring a document costs as much as scanning so many postings


@njit_cached()
def quantise_query(highest: Any, terms: Any, weights: Any, table: Any) -> tuple[float, int]:
    """Fill table uint16 [n, 256]: what each step of each term adds to a scan; return the score of one scan unit, and the scan's error."""
    total = 0.0
    for term_index in range(len(terms)):
        total += weights[term_index] * np.float64(highest[terms[term_index]])
    unit, error = total / (MAX_SCAN - len(terms) - 1), len(terms)
    for term_index in range(len(terms)):
        each = weights[term_index] * np.float64(highest[terms[term_index]]) / STEPS / unit if unit > 0 else 0.0
        table[term_index, 0] = 0
        for step in range(1, STEPS + 1):
            table[term_index, step] = max(1, int(np.ceil(each * step)))
        error += int(table[term_index, 1])
    return unit, error


@njit_cached()
def first_at_most(steps: Any, begin: int, end: int, cut: int) -> int:
    """Index of the first of descending steps[begin:end] that is at most `cut`."""
    while begin < end:
        middle = (begin + end) >> 1
        if steps[middle] > cut:
            begin = middle + 1
        else:
            end = middle
    return begin


@njit_cached()
def accumulate_postings(offsets: Any, steps: Any, begin: int, end: int, added: Any, sums: Any) -> None:
    """Add the postings of one list to the scans of its window."""
    for posting in range(begin, end):
        sums[offsets[posting]] += added[steps[posting]]


@njit_cached()
def scan_window(window: int, terms: Any, lists: Any, cursors: Any, directory: Any, postings: Any, cuts: Any, table: Any, sums: Any) -> int:
    """Scan a window's documents, skipping steps up to `cuts`; return `omitted`. Moves the cursors to the lists of this window or later."""
    windows, begins, ends = directory
    offsets, steps = postings
    omitted = 0
    for term_index in range(len(terms)):
        cursor, last = cursors[term_index], lists[terms[term_index] + 1]
        while cursor < last and windows[cursor] < window:
            cursor += 1
        cursors[term_index] = cursor
        if cursor < last and windows[cursor] == window:
            begin, end = begins[cursor], ends[cursor]
            if cuts[term_index] > 0:
                omitted += int(table[term_index, min(cuts[term_index], steps[begin])])
                end = first_at_most(steps, begin, end, cuts[term_index])
            accumulate_postings(offsets, steps, begin, end, table[term_index], sums)
    return omitted


@njit_cached()
def collect_candidates(
    sums: Any, first: int, omitted: int, error: int, depth: int, bins: Any, state: Any, candidate_count: int, rows: Any, scans: Any
) -> int:
    """Add a window's documents that may belong to the best `depth`, with upper bounds of their scans; return the new candidate count.

    state [2]: how many scans are in `bins` from bin state[1] up, and state[1], the highest bin that at least `depth` scans reach.
    """
    for begin in range(0, len(sums), SCAN_BLOCK):
        least_scan = max(1, (state[1] << BIN_BITS) - error - omitted)
        block_maximum = np.uint16(0)
        for offset in range(begin, begin + SCAN_BLOCK):
            block_maximum = max(block_maximum, sums[offset])
        if block_maximum < least_scan:
            continue
        for offset in range(begin, begin + SCAN_BLOCK):
            reached = int(sums[offset])
            if reached >= least_scan:
                rows[candidate_count], scans[candidate_count] = first + offset, reached + omitted
                candidate_count += 1
                if reached >> BIN_BITS >= state[1]:
                    bins[reached >> BIN_BITS] += 1
                    state[0] += 1
        while state[0] - bins[state[1]] >= depth:
            state[0] -= bins[state[1]]
            state[1] += 1
    return candidate_count


@njit_cached()
def prune_candidates(rows: Any, scans: Any, candidate_count: int, least: int) -> int:
    """Drop candidates whose scan is below `least`; return how many remain."""
    remaining = 0
    for candidate in range(candidate_count):
        if scans[candidate] >= least:
            rows[remaining], scans[remaining] = rows[candidate], scans[candidate]
            remaining += 1
    return remaining


@njit_cached()
def tail_counts(window: int, terms: Any, lists: Any, cursors: Any, directory: Any, steps: Any) -> Any:
    """How many postings each term has up to each multiple of CUTOFF_GRID steps in the window just scanned: [n, notches]."""
    windows, begins, ends = directory
    tails = np.zeros((len(terms), STEPS // CUTOFF_GRID + 1), np.int64)
    for term_index in range(len(terms)):
        cursor = cursors[term_index]
        if cursor < lists[terms[term_index] + 1] and windows[cursor] == window:
            for notch in range(1, tails.shape[1]):
                tails[term_index, notch] = ends[cursor] - first_at_most(steps, begins[cursor], ends[cursor], notch * CUTOFF_GRID)
    return tails


@njit_cached()
def cumulative_histogram(sums: Any, bins: int) -> Any:
    """Estimate how many scans of a window are in each bin or above: [bins + 1]."""
    reached = np.zeros(bins + 1, np.int64)
    for begin in range(0, len(sums), SCAN_BLOCK * SAMPLE_EVERY):
        for offset in range(begin, begin + SCAN_BLOCK):
            reached[sums[offset] >> BIN_BITS] += SAMPLE_EVERY
    for bin_index in range(bins - 1, -1, -1):
        reached[bin_index] += reached[bin_index + 1]
    return reached


@njit_cached()
def choose_cutoffs(share: float, error: int, depth: int, bins: Any, state: Any, tails: Any, reached: Any, table: Any, cuts: Any) -> None:
    """Choose the step up to which each term's postings are skipped in the remaining windows, `share` times the one just scanned.

    Skipping more scans fewer postings but scores more documents. For each price of a unit of `omitted` every term has its own best
    cutoff; of several prices the one that saves most is taken.
    """
    above, target, best = 0, depth / (share + 1.0), len(bins) - 1
    while best > state[1] and above + bins[best] < target:  # bin of the K-th best if all windows are alike
        above += bins[best]
        best -= 1
    base = reached[max((best << BIN_BITS) - error, 0) >> BIN_BITS]
    trial, best_saving, price = np.zeros(len(tails), np.int64), 0.0, tails[:, -1].sum() / (8.0 * MAX_SCAN)
    cuts[:] = 0
    for _ in range(14):
        omitted, saved = 0, 0.0
        for term_index in range(len(tails)):
            gain, trial[term_index] = 0.0, 0
            for notch in range(1, tails.shape[1]):
                net_gain = tails[term_index, notch] - price * table[term_index, notch * CUTOFF_GRID]
                if net_gain > gain:
                    gain, trial[term_index] = net_gain, notch
            omitted += int(table[term_index, trial[term_index] * CUTOFF_GRID])
            saved += tails[term_index, trial[term_index]]
        least_scan = (best << BIN_BITS) - error - omitted
        if least_scan > omitted:
            saved -= CANDIDATE_COST * (reached[least_scan >> BIN_BITS] - base)
            if saved > best_saving:
                best_saving = saved
                cuts[:] = trial * CUTOFF_GRID
        price *= 1.6
