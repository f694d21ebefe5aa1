"""Search over postings. First a scan of 8-bit impacts finds the documents that can be among the best K.

The scan rounds a weight up to one of 255 steps of its term's largest weight, so its error is bounded: at most `error` too high from
rounding, at most `omitted` too low from postings of small steps that were skipped. However many are skipped, the documents with
scan + `omitted` ≥ K-th best scan − `error` contain the best K (MaxScore's argument, Turtle and Flood 1995, over impact-ordered lists, Anh
and Moffat 2006). How much is skipped is chosen from the first window's scans; it affects only the time.

Then each candidate is scored from its own weights and the best are kept in a heap; chosen pairs are scored likewise.

A score is the float64 sum of the products of weights, terms ascending, rounded to float32: the same bits for any batch and thread.
"""

from typing import Any

import numba
import numpy as np

from moeir.indexes.simd_loops import LANES, equal_mask_32, lowest_bit, prefetch_line
from moeir.indexes.sparse_rows import STEPS
from moeir.kernels.numba_cache import njit_cached

MAX_SCAN = 2**16 - 1  # largest scan value, uint16
SCAN_BLOCK = 64  # scans compared at once
BIN_BITS = 4  # a histogram bin is 2^BIN_BITS scan values wide
THRESHOLD_BITS, GROUP = 6, 16  # the same of `raise_threshold`, and of how many scans it takes the largest
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
def _update_maxima(largest: Any, scans: Any) -> None:
    """largest[i] = max(largest[i], scans[i]): [n], [n]."""
    for i in range(len(largest)):
        largest[i] = max(largest[i], scans[i])


@njit_cached()
def raise_threshold(sums: Any, depth: int, bins: Any, state: Any) -> None:
    """Raise state[1] of `collect_candidates` to a bin that `depth` of the window's scans reach, if one is cheap to find.

    The window is cut into `GROUP` equal parts, or fewer. The largest scan at each position over all parts belongs to a document of its own,
    so the K-th largest of these maxima is a lower bound of the K-th largest scan.
    """
    parts = max(1, min(GROUP, len(sums) // (4 * depth)))
    width = len(sums) // parts
    if width < depth:
        return
    largest, counts = sums[:width].copy(), np.zeros((MAX_SCAN >> THRESHOLD_BITS) + 1, np.int32)
    for first in range(width, parts * width, width):
        _update_maxima(largest, sums[first : first + width])
    for column in range(width):
        counts[largest[column] >> THRESHOLD_BITS] += 1
    threshold, reached = len(counts) - 1, np.int64(counts[-1])
    while reached < depth and threshold > 0:
        threshold -= 1
        reached += counts[threshold]
    for bin_index in range(state[1], threshold << (THRESHOLD_BITS - BIN_BITS)):
        state[0] -= bins[bin_index]
    state[1] = max(state[1], threshold << (THRESHOLD_BITS - BIN_BITS))


@njit_cached()
def _find_largest(scans: Any) -> Any:
    """The largest of scans [n]; by itself, the compiler compares many at once."""
    largest = np.uint16(0)
    for i in range(len(scans)):
        largest = max(largest, scans[i])
    return largest


@njit_cached()
def collect_candidates(
    sums: Any, first: int, omitted: int, error: int, depth: int, bins: Any, state: Any, candidate_count: int, rows: Any, scans: Any
) -> int:
    """Add a window's documents that may belong to the best `depth`, with upper bounds of their scans; return the new candidate count.

    state [2]: how many scans are in `bins` from bin state[1] up, and state[1], the highest bin that at least `depth` scans reach.
    """
    for begin in range(0, len(sums), SCAN_BLOCK):
        least_scan = max(1, (state[1] << BIN_BITS) - error - omitted)
        if _find_largest(sums[begin : begin + SCAN_BLOCK]) < least_scan:
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


HASH_SLOTS = 2**16  # of the hash table of a query's terms
MARKS = 2**12  # bytes, in the nearest cache, that tell most terms that a query lacks
AHEAD, READ_AHEAD = 4, 128  # documents whose first terms are read ahead of their turn, and how many terms
MOST_COMPARED = 48  # terms of a query that are compared with each of a document's
ROUNDING_SLACK = 1.0 + 2.0**-20  # upper bound of the relative rounding error in float64 and to float32


@njit_cached()
def heap_push(rows: Any, scores: Any, id_ranks: Any, count: int, row: int, score: Any) -> int:
    """Push into a bounded heap whose root is the worst by (score, id rank); return the new number of entries."""
    id_rank = id_ranks[row]
    if count < len(rows):
        hole = count
        while hole > 0:
            parent = (hole - 1) // 2
            if scores[parent] < score or (scores[parent] == score and id_ranks[rows[parent]] < id_rank):
                break
            scores[hole], rows[hole] = scores[parent], rows[parent]
            hole = parent
        scores[hole], rows[hole] = score, row
        return count + 1
    if score < scores[0] or (score == scores[0] and id_rank < id_ranks[rows[0]]):
        return count
    _sift_down(rows, scores, id_ranks, count, row, score)
    return count


@njit_cached()
def _sift_down(rows: Any, scores: Any, id_ranks: Any, count: int, row: int, score: Any) -> None:
    """Put an entry in the place of the root of a heap of `count` entries."""
    hole, id_rank = 0, id_ranks[row]
    while 2 * hole + 1 < count:
        child = 2 * hole + 1
        other = child + 1
        if other < count and (
            scores[other] < scores[child] or (scores[other] == scores[child] and id_ranks[rows[other]] < id_ranks[rows[child]])
        ):
            child = other
        if score < scores[child] or (score == scores[child] and id_rank < id_ranks[rows[child]]):
            break
        scores[hole], rows[hole] = scores[child], rows[child]
        hole = child
    scores[hole], rows[hole] = score, row


@njit_cached()
def sort_heap(rows: Any, scores: Any, id_ranks: Any, count: int) -> None:
    """Sort the first `count` entries of a heap, best first."""
    for last in range(count - 1, 0, -1):
        row, score = rows[last], scores[last]
        rows[last], scores[last] = rows[0], scores[0]
        _sift_down(rows, scores, id_ranks, last, row, score)


@njit_cached()
def _make_hash_table(slots: int, document_terms: Any) -> Any:
    """A hash table for the terms of a query: `slots`, a power of two, hold index + 1 at the term's slot or the next free one; marks [MARKS]
    are 1 at each term's low bits; `narrow_terms` has the terms in the documents' dtype."""
    return np.zeros(slots, np.int32), np.zeros(MARKS, np.uint8), np.empty(slots, document_terms.dtype)


@njit_cached()
def _fill_hash_table(terms: Any, hash_table: Any) -> None:
    slots, marks, narrow_terms = hash_table
    for term_index in range(len(terms)):
        marks[terms[term_index] & (MARKS - 1)], narrow_terms[term_index] = 1, terms[term_index]
        slot = terms[term_index] & (len(slots) - 1)
        while slots[slot] > 0:
            slot = (slot + 1) & (len(slots) - 1)
        slots[slot] = term_index + 1


@njit_cached()
def _clear_hash_table(terms: Any, hash_table: Any) -> None:
    slots, marks, _ = hash_table
    for term_index in range(len(terms)):
        marks[terms[term_index] & (MARKS - 1)] = 0
        slot = terms[term_index] & (len(slots) - 1)
        while slots[slot] > 0:
            slots[slot] = 0
            slot = (slot + 1) & (len(slots) - 1)


@njit_cached()
def _find_term(term: int, terms: Any, slots: Any) -> int:
    """The index of a term in the query's ascending terms, −1 if it has none."""
    slot = term & (len(slots) - 1)
    while slots[slot] > 0:
        if terms[slots[slot] - 1] == term:
            return slots[slot] - 1
        slot = (slot + 1) & (len(slots) - 1)
    return -1


@njit_cached()
def _score_document(row: int, forward: Any, shift: float, terms: Any, weights: Any, hash_table: Any) -> tuple[float, bool]:
    """The score of a document, and whether it shares a term with the query; terms of both are ascending.

    A short query's terms are compared with `LANES` of the document's at once; else each of the document's is looked up.
    """
    (starts, document_terms, values), (slots, marks, narrow_terms) = forward, hash_table
    total, shared = 0.0, False
    begin, last = starts[row], starts[row + 1]
    if len(terms) <= MOST_COMPARED and last - begin >= LANES:
        for block in range(begin, last, LANES):
            first = min(block, last - LANES)  # the last one starts within the one before it
            mask = np.uint32(0)
            for term_index in range(len(terms)):
                mask |= equal_mask_32(document_terms, first, narrow_terms[term_index])
            mask &= np.uint32(0xFFFFFFFF) << np.uint32(block - first)
            while mask:
                entry = first + lowest_bit(mask)
                mask &= mask - np.uint32(1)
                weight = weights[_find_term(np.int64(document_terms[entry]), terms, slots)]
                total += weight * (np.float64(values[entry]) - shift)
                shared = True
        return total + 0.0, shared  # −0 becomes 0
    for entry in range(begin, last):
        term = np.int64(document_terms[entry])
        if marks[term & (MARKS - 1)]:
            term_index = _find_term(term, terms, slots)
            if term_index >= 0:
                total += weights[term_index] * (np.float64(values[entry]) - shift)
                shared = True
    return total + 0.0, shared  # −0 becomes 0


@njit_cached()
def _scan_windows(
    windows: Any, documents: int, lists: Any, directory: Any, postings: Any,
    terms: Any, table: Any, error: int, depth: int, pruned: bool, sums: Any, rows: Any, scans: Any,
) -> tuple[Any, Any, int, int, bool]:  # fmt: skip
    """Candidates for the best K in the windows (first, stride): rows, upper bounds of their scans, their number; a lower bound of the K-th
    best scan; and whether the candidates are proven to contain the best K, which fails if more was omitted than the K-th best scan."""
    bins, state = np.zeros((MAX_SCAN >> BIN_BITS) + 1, np.int64), np.zeros(2, np.int64)
    cursors, cuts = np.empty(len(terms), np.int64), np.zeros(len(terms), np.int64)
    for term_index in range(len(terms)):
        cursors[term_index] = lists[terms[term_index]]
    count, candidate_count, most_omitted = (documents + len(sums) - 1) // len(sums), 0, 0
    for window in range(windows[0], count, windows[1]):
        if candidate_count + len(sums) > len(rows):
            candidate_count = prune_candidates(rows, scans, candidate_count, (state[1] << BIN_BITS) - error)
            if candidate_count + len(sums) > len(rows):
                rows = np.concatenate((rows, np.empty(len(rows), rows.dtype)))
                scans = np.concatenate((scans, np.empty(len(scans), scans.dtype)))
        sums[:] = 0
        omitted = scan_window(window, terms, lists, cursors, directory, postings, cuts, table, sums)
        most_omitted, first = max(most_omitted, omitted), window * len(sums)
        raise_threshold(sums, depth, bins, state)
        candidate_count = collect_candidates(sums, first, omitted, error, depth, bins, state, candidate_count, rows, scans)
        if pruned and window == windows[0] and window + windows[1] < count and state[1] > 0:
            tails = tail_counts(window, terms, lists, cursors, directory, postings[1])
            share = (count - 1 - window) / windows[1]
            choose_cutoffs(share, error, depth, bins, state, tails, cumulative_histogram(sums, len(bins)), table, cuts)
    best = state[1] << BIN_BITS
    return rows, scans, prune_candidates(rows, scans, candidate_count, best - error), best, most_omitted == 0 or best - error > most_omitted


@njit_cached()
def _rerank_candidates(
    candidates: Any, scans: Any, best: int, unit: float, forward: Any, shift: float, terms: Any, weights: Any, hash_table: Any,
    id_ranks: Any, rows: Any, scores: Any,
) -> None:  # fmt: skip
    """Score candidates, first those whose scan reaches `best`, then those that can still be among the best; keep the best, best first."""
    count = 0
    for first in (True, False):
        for i in range(len(candidates)):
            if first and i + AHEAD < len(candidates):
                begin = forward[0][candidates[i + AHEAD]]
                for entry in range(begin, min(forward[0][candidates[i + AHEAD] + 1], begin + READ_AHEAD), LANES):
                    prefetch_line(forward[1], entry)
            if (scans[i] >= best) == first and (count < len(rows) or scans[i] * unit * ROUNDING_SLACK >= scores[0]):
                score, shared = _score_document(candidates[i], forward, shift, terms, weights, hash_table)
                if shared:
                    count = heap_push(rows, scores, id_ranks, count, candidates[i], np.float32(score))
    sort_heap(rows, scores, id_ranks, count)


@njit_cached(parallel=True)
def search_postings(
    lists: Any, windows: Any, begins: Any, ends: Any, offsets: Any, steps: Any,
    document_starts: Any, document_terms: Any, document_weights: Any, shift: float, highest: Any,
    starts: Any, terms: Any, weights: Any, scanned: Any, id_ranks: Any, span: int, slots: int, parts: int, rows: Any, scores: Any,
) -> None:  # fmt: skip
    """Fill heaps of the best documents, rows and scores [Q · splits, K]; heap s of a query covers the windows s, s + splits, …

    Queries with `scanned` false are scored with every document.
    """
    splits = len(rows) // max(len(starts) - 1, 1)
    for part in numba.prange(parts):
        directory, postings, forward = (windows, begins, ends), (offsets, steps), (document_starts, document_terms, document_weights)
        sums, hash_table = np.zeros(span, np.uint16), _make_hash_table(slots, document_terms)
        candidates, scans = np.empty(2 * span, np.int32), np.empty(2 * span, np.int32)
        for heap in range(part, len(rows), parts):
            query = heap // splits
            query_terms, query_weights = terms[starts[query] : starts[query + 1]], weights[starts[query] : starts[query + 1]]
            best_rows, best_scores = rows[heap], scores[heap]
            _fill_hash_table(query_terms, hash_table)
            if scanned[query]:
                table = np.empty((len(query_terms), STEPS + 1), np.uint16)
                unit, error = quantise_query(highest, query_terms, query_weights, table)
                for pruned in (True, False):
                    candidates, scans, candidate_count, best, proven = _scan_windows(
                        (heap % splits, splits), len(id_ranks), lists, directory, postings, query_terms, table, error, rows.shape[1],
                        pruned, sums, candidates, scans,
                    )  # fmt: skip
                    if proven:
                        break
                _rerank_candidates(
                    candidates[:candidate_count], scans[:candidate_count], best, unit, forward, shift, query_terms, query_weights,
                    hash_table, id_ranks, best_rows, best_scores,
                )  # fmt: skip
            else:
                every = np.arange(heap % splits, len(id_ranks), splits).astype(np.int32)
                any_scan = np.ones(len(every), np.int32)
                _rerank_candidates(
                    every, any_scan, 0, np.inf, forward, shift, query_terms, query_weights, hash_table, id_ranks, best_rows, best_scores
                )
            _clear_hash_table(query_terms, hash_table)


@njit_cached(parallel=True)
def score_row_pairs(
    document_starts: Any, document_terms: Any, document_weights: Any, shift: float, starts: Any, terms: Any, weights: Any, slots: int,
    queries: Any, rows: Any, parts: int, scores: Any,
) -> None:  # fmt: skip
    """Scores of chosen pairs, identical to those of search, 0 if no term is shared; ascending queries [P] and rows [P] -> scores [P]."""
    for part in numba.prange(parts):
        forward = (document_starts, document_terms, document_weights)
        hash_table = _make_hash_table(slots, document_terms)
        current_query, query_terms, query_weights = -1, terms[:0], weights[:0]
        for pair in range(len(rows) * part // parts, len(rows) * (part + 1) // parts):
            if queries[pair] != current_query:
                _clear_hash_table(query_terms, hash_table)
                current_query = queries[pair]
                begin, end = starts[current_query], starts[current_query + 1]
                query_terms, query_weights = terms[begin:end], weights[begin:end]
                _fill_hash_table(query_terms, hash_table)
            scores[pair] = np.float32(_score_document(rows[pair], forward, shift, query_terms, query_weights, hash_table)[0])
