"""Search over postings: candidates from the scan, each scored from its own weights, the best of them kept; and scores of chosen pairs.

A score is the float64 sum of the products of weights, terms ascending, rounded to float32: the same bits for any batch and thread.
"""

from typing import Any

import numba
import numpy as np

from moeir.indexes import impacts
from moeir.kernels.compiling import compiled

SLOTS = 2**16  # of the table that finds a query's terms
SLACK = 1.0 + 2.0**-20  # above all that rounding in float64 and to float32 can lose


@compiled()
def offer(rows: Any, scores: Any, places: Any, count: int, row: int, score: Any) -> int:
    """Keep the best of a heap whose root is the worst by (score, place); the new number of entries."""
    place = places[row]
    if count < len(rows):
        hole = count
        while hole > 0:
            parent = (hole - 1) // 2
            if scores[parent] < score or (scores[parent] == score and places[rows[parent]] < place):
                break
            scores[hole], rows[hole] = scores[parent], rows[parent]
            hole = parent
        scores[hole], rows[hole] = score, row
        return count + 1
    if score < scores[0] or (score == scores[0] and place < places[rows[0]]):
        return count
    hole = 0
    while 2 * hole + 1 < count:
        child = 2 * hole + 1
        other = child + 1
        if other < count and (
            scores[other] < scores[child] or (scores[other] == scores[child] and places[rows[other]] < places[rows[child]])
        ):
            child = other
        if score < scores[child] or (score == scores[child] and place < places[rows[child]]):
            break
        scores[hole], rows[hole] = scores[child], rows[child]
        hole = child
    scores[hole], rows[hole] = score, row
    return count


@compiled()
def _install(terms: Any, slots: Any) -> None:
    """Note where each term of a query stands: slots, of a power of two, hold place + 1 at the term's own slot or the next free one."""
    for place in range(len(terms)):
        slot = terms[place] & (len(slots) - 1)
        while slots[slot] > 0:
            slot = (slot + 1) & (len(slots) - 1)
        slots[slot] = place + 1


@compiled()
def _clear(terms: Any, slots: Any) -> None:
    for place in range(len(terms)):
        slot = terms[place] & (len(slots) - 1)
        while slots[slot] > 0:
            slots[slot] = 0
            slot = (slot + 1) & (len(slots) - 1)


@compiled()
def _score(row: int, forward: Any, shift: float, terms: Any, weights: Any, slots: Any) -> tuple[float, bool]:
    """The score of a document, and whether it shares a term."""
    starts, own, values = forward
    total, shared = 0.0, False
    for entry in range(starts[row], starts[row + 1]):
        term = np.int64(own[entry])
        slot = term & (len(slots) - 1)
        while slots[slot] > 0:
            if terms[slots[slot] - 1] == term:
                total += weights[slots[slot] - 1] * (np.float64(values[entry]) - shift)
                shared = True
                break
            slot = (slot + 1) & (len(slots) - 1)
    return total + 0.0, shared  # −0 becomes 0


@compiled()
def _candidates(
    windows: Any, documents: int, lists: Any, directory: Any, postings: Any,
    terms: Any, table: Any, error: int, depth: int, pruned: bool, sums: Any, rows: Any, scans: Any,
) -> tuple[Any, Any, int, int, bool]:  # fmt: skip
    """Documents that may be among the best of windows (first, stride): rows, the most their scan can be, how many; the scan of the K-th
    best at least; and whether that is proven, as it is not where more was left out than the K-th best has."""
    bins, state = np.zeros((impacts.TOP >> impacts.FINE) + 1, np.int64), np.zeros(2, np.int64)
    cursors, cuts = np.empty(len(terms), np.int64), np.zeros(len(terms), np.int64)
    for place in range(len(terms)):
        cursors[place] = lists[terms[place]]
    count, held, most_left = (documents + len(sums) - 1) // len(sums), 0, 0
    for window in range(windows[0], count, windows[1]):
        if held + len(sums) > len(rows):
            held = impacts.thinned(rows, scans, held, (state[1] << impacts.FINE) - error)
            if held + len(sums) > len(rows):
                rows = np.concatenate((rows, np.empty(len(rows), rows.dtype)))
                scans = np.concatenate((scans, np.empty(len(scans), scans.dtype)))
        sums[:] = 0
        left = impacts.scan(window, terms, lists, cursors, directory, postings, cuts, table, sums)
        held, most_left = impacts.gather(sums, window * len(sums), left, error, depth, bins, state, held, rows, scans), max(most_left, left)
        if pruned and window == windows[0] and window + windows[1] < count and state[1] > 0:
            tails = impacts.tails_of(window, terms, lists, cursors, directory, postings[1])
            share = (count - 1 - window) / windows[1]
            impacts.choose_cuts(share, error, depth, bins, state, tails, impacts.reaching(sums, len(bins)), table, cuts)
    best = state[1] << impacts.FINE
    return rows, scans, impacts.thinned(rows, scans, held, best - error), best, most_left == 0 or best - error > most_left


@compiled()
def _best(
    found: Any, scans: Any, best: int, unit: float, forward: Any, shift: float, terms: Any, weights: Any, slots: Any,
    places: Any, rows: Any, scores: Any,
) -> None:  # fmt: skip
    """Score candidates, first those whose scan reaches `best`, then those that can still be among the best; keep the best as a heap."""
    count = 0
    for first in (True, False):
        for place in range(len(found)):
            if (scans[place] >= best) == first and (count < len(rows) or scans[place] * unit * SLACK >= scores[0]):
                score, shared = _score(found[place], forward, shift, terms, weights, slots)
                if shared:
                    count = offer(rows, scores, places, count, found[place], np.float32(score))


@compiled(parallel=True)
def search(
    lists: Any, windows: Any, begins: Any, ends: Any, offsets: Any, steps: Any, own_starts: Any, own_terms: Any, own_weights: Any,
    shift: float, highest: Any, starts: Any, terms: Any, weights: Any, scanned: Any,
    places: Any, span: int, slots: int, parts: int, rows: Any, scores: Any,
) -> None:  # fmt: skip
    """Heaps of the best documents, rows and scores [Q · splits, K]: each line of the windows that are one of `splits` in turn.

    Queries whose `scanned` is false are scored with every document.
    """
    splits = len(rows) // max(len(starts) - 1, 1)
    for part in numba.prange(parts):
        directory, postings, forward = (windows, begins, ends), (offsets, steps), (own_starts, own_terms, own_weights)
        sums, table_of_terms = np.zeros(span, np.uint16), np.zeros(slots, np.int32)
        found, scans = np.empty(2 * span, np.int32), np.empty(2 * span, np.int32)
        for line in range(part, len(rows), parts):
            query = line // splits
            asked, given = terms[starts[query] : starts[query + 1]], weights[starts[query] : starts[query + 1]]
            best_rows, best_scores = rows[line], scores[line]
            _install(asked, table_of_terms)
            if scanned[query]:
                table = np.empty((len(asked), impacts.STEPS + 1), np.uint16)
                unit, error = impacts.contributions(highest, asked, given, table)
                for pruned in (True, False):
                    found, scans, held, best, proven = _candidates(
                        (line % splits, splits), len(places), lists, directory, postings, asked, table, error, rows.shape[1], pruned,
                        sums, found, scans,
                    )  # fmt: skip
                    if proven:
                        break
                _best(found[:held], scans[:held], best, unit, forward, shift, asked, given, table_of_terms, places, best_rows, best_scores)
            else:
                every = np.arange(line % splits, len(places), splits).astype(np.int32)
                any_scan = np.ones(len(every), np.int32)
                _best(every, any_scan, 0, np.inf, forward, shift, asked, given, table_of_terms, places, best_rows, best_scores)
            _clear(asked, table_of_terms)


@compiled(parallel=True)
def pairs(
    own_starts: Any, own_terms: Any, own_weights: Any, shift: float, starts: Any, terms: Any, weights: Any, slots: int,
    queries: Any, rows: Any, parts: int, scores: Any,
) -> None:  # fmt: skip
    """The scores `search` gives to chosen pairs, 0 where no term is shared; ascending queries [P] and rows [P] -> scores [P]."""
    for part in numba.prange(parts):
        forward, table_of_terms = (own_starts, own_terms, own_weights), np.zeros(slots, np.int32)
        known, asked, given = -1, terms[:0], weights[:0]
        for pair in range(len(rows) * part // parts, len(rows) * (part + 1) // parts):
            if queries[pair] != known:
                _clear(asked, table_of_terms)
                known = queries[pair]
                asked, given = terms[starts[known] : starts[known + 1]], weights[starts[known] : starts[known + 1]]
                _install(asked, table_of_terms)
            scores[pair] = np.float32(_score(rows[pair], forward, shift, asked, given, table_of_terms)[0])
