"""The scan of postings in small whole numbers, and what it proves: which documents can be among the best K.

A weight counts in the scan as the next of 255 steps up to the largest weight of its term, so what a scan is wrong by is known: at most
`error` too high from rounding, at most `left` too low from postings of small steps that were left out. Whatever is left out, documents
whose scan and `left` reach the K-th best scan less `error` hold the best K (MaxScore's argument, Turtle and Flood 1995, over lists in the
order of impacts, Anh and Moffat 2006). How much is left out is chosen from what the first window looks like; it changes the time only.
"""

from typing import Any

import numpy as np

from moeir.kernels.compiling import compiled

STEPS = 255
TOP = 2**16 - 1  # the largest scan
BLOCK = 64  # scans looked at together
FINE = 4  # a bin of scans is 2^FINE wide
GRID = 8  # steps are left out by so many at a time
SAMPLED = 8  # of so many blocks of the first window all scans are looked at in one
CANDIDATE = 400  # scoring a document takes as long as scanning so many postings


@compiled()
def contributions(highest: Any, terms: Any, weights: Any, table: Any) -> tuple[float, int]:
    """What each step of each term adds to a scan, uint16 table [n, 256]; what one unit of a scan is worth, and the error of a scan."""
    total = 0.0
    for place in range(len(terms)):
        total += weights[place] * np.float64(highest[terms[place]])
    unit, error = total / (TOP - len(terms) - 1), len(terms)
    for place in range(len(terms)):
        each = weights[place] * np.float64(highest[terms[place]]) / STEPS / unit if unit > 0 else 0.0
        table[place, 0] = 0
        for step in range(1, STEPS + 1):
            table[place, step] = max(1, int(np.ceil(each * step)))
        error += int(table[place, 1])
    return unit, error


@compiled()
def first_below(steps: Any, begin: int, end: int, cut: int) -> int:
    """The first of descending steps[begin:end] that is at most `cut`."""
    while begin < end:
        middle = (begin + end) >> 1
        if steps[middle] > cut:
            begin = middle + 1
        else:
            end = middle
    return begin


@compiled()
def add_list(offsets: Any, steps: Any, begin: int, end: int, added: Any, sums: Any) -> None:
    """Add the postings of one list to the scans of its window."""
    for posting in range(begin, end):
        sums[offsets[posting]] += added[steps[posting]]


@compiled()
def scan(window: int, terms: Any, lists: Any, cursors: Any, directory: Any, postings: Any, cuts: Any, table: Any, sums: Any) -> int:
    """The scans of a window's documents without steps up to `cuts`; `left`. Moves the cursors to the lists of this window or after."""
    windows, begins, ends = directory
    offsets, steps = postings
    left = 0
    for place in range(len(terms)):
        cursor, last = cursors[place], lists[terms[place] + 1]
        while cursor < last and windows[cursor] < window:
            cursor += 1
        cursors[place] = cursor
        if cursor < last and windows[cursor] == window:
            begin, end = begins[cursor], ends[cursor]
            if cuts[place] > 0:
                left += int(table[place, min(cuts[place], steps[begin])])
                end = first_below(steps, begin, end, cuts[place])
            add_list(offsets, steps, begin, end, table[place], sums)
    return left


@compiled()
def gather(sums: Any, first: int, left: int, error: int, depth: int, bins: Any, state: Any, held: int, rows: Any, scans: Any) -> int:
    """Keep the documents of a window that may belong to the best `depth`, each with the most its scan can be; the new number held.

    state [2]: how many scans stand in `bins` from the second number on, and that number: the highest that `depth` of them reach.
    """
    for begin in range(0, len(sums), BLOCK):
        least = max(1, (state[1] << FINE) - error - left)
        most = np.uint16(0)
        for offset in range(begin, begin + BLOCK):
            most = max(most, sums[offset])
        if most < least:
            continue
        for offset in range(begin, begin + BLOCK):
            reached = int(sums[offset])
            if reached >= least:
                rows[held], scans[held] = first + offset, reached + left
                held += 1
                if reached >> FINE >= state[1]:
                    bins[reached >> FINE] += 1
                    state[0] += 1
        while state[0] - bins[state[1]] >= depth:
            state[0] -= bins[state[1]]
            state[1] += 1
    return held


@compiled()
def thinned(rows: Any, scans: Any, held: int, least: int) -> int:
    """Forget what can no longer be among the best; the number that stay."""
    stay = 0
    for place in range(held):
        if scans[place] >= least:
            rows[stay], scans[stay] = rows[place], scans[place]
            stay += 1
    return stay


@compiled()
def tails_of(window: int, terms: Any, lists: Any, cursors: Any, directory: Any, steps: Any) -> Any:
    """How many postings each term has up to each notch of GRID steps in the window just scanned: [n, notches]."""
    windows, begins, ends = directory
    tails = np.zeros((len(terms), STEPS // GRID + 1), np.int64)
    for place in range(len(terms)):
        cursor = cursors[place]
        if cursor < lists[terms[place] + 1] and windows[cursor] == window:
            for notch in range(1, tails.shape[1]):
                tails[place, notch] = ends[cursor] - first_below(steps, begins[cursor], ends[cursor], notch * GRID)
    return tails


@compiled()
def reaching(sums: Any, bins: int) -> Any:
    """About how many scans of a window stand in a bin or above: [bins + 1]."""
    reached = np.zeros(bins + 1, np.int64)
    for begin in range(0, len(sums), BLOCK * SAMPLED):
        for offset in range(begin, begin + BLOCK):
            reached[sums[offset] >> FINE] += SAMPLED
    for place in range(bins - 1, -1, -1):
        reached[place] += reached[place + 1]
    return reached


@compiled()
def choose_cuts(share: float, error: int, depth: int, bins: Any, state: Any, tails: Any, reached: Any, table: Any, cuts: Any) -> None:
    """Choose the steps up to which each term is left out of the windows to come, `share` times as many as the one just scanned.

    To leave out more is to scan fewer postings and to score more documents. For each price of a unit of `left` every term has its own
    best cut; of several prices the one that saves most is taken.
    """
    above, wanted, best = 0, depth / (share + 1.0), len(bins) - 1
    while best > state[1] and above + bins[best] < wanted:  # where the K-th will stand if all windows are like this one
        above += bins[best]
        best -= 1
    base = reached[max((best << FINE) - error, 0) >> FINE]
    trial, most, price = np.zeros(len(tails), np.int64), 0.0, tails[:, -1].sum() / (8.0 * TOP)
    cuts[:] = 0
    for _ in range(14):
        left, saved = 0, 0.0
        for place in range(len(tails)):
            gain, trial[place] = 0.0, 0
            for notch in range(1, tails.shape[1]):
                kept = tails[place, notch] - price * table[place, notch * GRID]
                if kept > gain:
                    gain, trial[place] = kept, notch
            left += int(table[place, trial[place] * GRID])
            saved += tails[place, trial[place]]
        least = (best << FINE) - error - left
        if least > left:
            saved -= CANDIDATE * (reached[least >> FINE] - base)
            if saved > most:
                most = saved
                cuts[:] = trial * GRID
        price *= 1.6
