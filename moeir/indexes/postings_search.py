"""Compiled search over postings. First a scan of 8-bit impacts finds the documents that can be among the best K.

The scan rounds a weight up to one of 255 steps of its term's largest weight, so it is at most `error` too high: the documents whose scan
is at least the K-th best scan − `error` contain the best K. Each of these candidates is scored from its own weights, as chosen pairs are.

A score is the float64 sum of the products of weights, terms ascending, rounded to float32: the same bits for any batch and thread.
"""

from typing import Any, NamedTuple

import numpy as np

from moeir.indexes.sparse_rows import STEPS
from moeir.kernels.numba_cache import njit_cached

MAX_SCAN = 2**16 - 1  # largest scan value, uint16
SCAN_BLOCK = 64  # scans compared at once
ROUNDING_SLACK = 1.0 + 2.0**-20  # upper bound of the relative rounding error in float64 and to float32
BIN_BITS = 4  # a histogram bin is 2^BIN_BITS scan values wide


class PostingLists(NamedTuple):
    """The lists of `Postings`, and what the largest step of each term is worth."""

    lists: np.ndarray
    windows: np.ndarray
    begins: np.ndarray
    ends: np.ndarray
    offsets: np.ndarray
    steps: np.ndarray
    highest: np.ndarray


class Documents(NamedTuple):
    """The documents' own terms and weights, from which `shift` is subtracted."""

    starts: np.ndarray
    terms: np.ndarray
    weights: np.ndarray
    shift: float


class Queries(NamedTuple):
    """starts [Q + 1], ascending terms, float64 weights; which queries are scanned, bool [Q]: others are scored with every document."""

    starts: np.ndarray
    terms: np.ndarray
    weights: np.ndarray
    scannable: np.ndarray


@njit_cached(nogil=True)
def search_part(
    postings: Any, documents: Any, queries: Any, id_ranks: Any, span: int, part: int, parts: int, rows: Any, scores: Any
) -> None:
    """Fill the lists part, part + parts, … of rows and scores [Q · splits, K]; list s of a query covers the windows s, s + splits, …"""
    splits, count = len(rows) // max(len(queries.starts) - 1, 1), len(id_ranks)
    query_terms, sums = _make_query_terms(len(postings.highest)), np.zeros(span, np.uint16)
    for line in range(part, len(rows), parts):
        query, split = line // splits, line % splits
        terms = queries.terms[queries.starts[query] : queries.starts[query + 1]]
        weights = queries.weights[queries.starts[query] : queries.starts[query + 1]]
        if queries.scannable[query]:
            candidates = _scan_windows(postings, terms, weights, split, splits, count, rows.shape[1], sums)
        else:
            every = np.arange(split, count, splits).astype(np.int32)
            candidates = every, np.zeros(len(every), np.int32), 0, 0.0
        _set_query_terms(query_terms, terms, weights)
        _rank_candidates(candidates, documents, query_terms, id_ranks, rows[line], scores[line])
        _clear_query_terms(query_terms, terms)


@njit_cached(nogil=True)
def score_row_pairs(documents: Any, queries: Any, vocabulary: int, query_rows: Any, rows: Any, scores: Any) -> None:
    """Scores of chosen pairs, identical to those of search, 0 if no term is shared; ascending query_rows [P], rows [P] -> scores [P]."""
    query_terms, terms, current = _make_query_terms(vocabulary), queries.terms[:0], -1
    for pair in range(len(rows)):
        if query_rows[pair] != current:
            _clear_query_terms(query_terms, terms)
            current = query_rows[pair]
            terms = queries.terms[queries.starts[current] : queries.starts[current + 1]]
            _set_query_terms(query_terms, terms, queries.weights[queries.starts[current] : queries.starts[current + 1]])
        scores[pair] = np.float32(_score_document(rows[pair], documents, query_terms)[0])


@njit_cached()
def _quantise_query(highest: Any, terms: Any, weights: Any, table: Any) -> tuple[float, int]:
    """Fill table uint16 [n, 256]: what each step of each term adds to a scan; return the score of one scan unit, and the scan's error."""
    total = 0.0
    for i in range(len(terms)):
        total += weights[i] * np.float64(highest[terms[i]])
    unit, error = total / (MAX_SCAN - len(terms) - 1), len(terms)
    for i in range(len(terms)):
        each = weights[i] * np.float64(highest[terms[i]]) / STEPS / unit if unit > 0 else 0.0
        table[i, 0] = 0
        for step in range(1, STEPS + 1):
            table[i, step] = max(1, int(np.ceil(each * step)))
        error += int(table[i, 1])
    return unit, error


@njit_cached()
def _scan_windows(postings: Any, terms: Any, weights: Any, first: int, stride: int, count: int, depth: int, sums: Any) -> Any:
    """Candidates for the best `depth` documents of every stride-th window: rows, scans, a scan that at least `depth` of them reach, and the
    score of one scan unit."""
    table = np.empty((len(terms), STEPS + 1), np.uint16)
    unit, error = _quantise_query(postings.highest, terms, weights, table)
    bins, best, above = np.zeros((MAX_SCAN >> BIN_BITS) + 1, np.int64), 0, 0  # `above` scans are in the bins from `best` on
    rows, scans, candidates = np.empty(2 * len(sums), np.int32), np.empty(2 * len(sums), np.int32), 0
    cursors = postings.lists[terms]
    for window in range(first, (count + len(sums) - 1) // len(sums), stride):
        if candidates + len(sums) > len(rows):
            candidates = _prune(rows, scans, candidates, (best << BIN_BITS) - error)
            if candidates + len(sums) > len(rows):
                rows, scans = np.concatenate((rows, rows)), np.concatenate((scans, scans))
        _scan_window(window, postings, terms, cursors, table, sums)
        for begin in range(0, len(sums), SCAN_BLOCK):
            least = max(1, (best << BIN_BITS) - error)
            if _find_largest(sums[begin : begin + SCAN_BLOCK]) < least:
                continue
            for offset in range(begin, begin + SCAN_BLOCK):
                scan = int(sums[offset])
                if scan >= least:
                    rows[candidates], scans[candidates] = window * len(sums) + offset, scan
                    candidates += 1
                    if scan >> BIN_BITS >= best:
                        bins[scan >> BIN_BITS] += 1
                        above += 1
            while above - bins[best] >= depth:
                above -= bins[best]
                best += 1
    candidates = _prune(rows, scans, candidates, (best << BIN_BITS) - error)
    return rows[:candidates], scans[:candidates], best << BIN_BITS, unit


@njit_cached()
def _scan_window(window: int, postings: Any, terms: Any, cursors: Any, table: Any, sums: Any) -> None:
    """Add up the scans of a window's documents, and move the cursors to the lists of this window or later."""
    sums[:] = 0
    for i in range(len(terms)):
        cursor, last = cursors[i], postings.lists[terms[i] + 1]
        while cursor < last and postings.windows[cursor] < window:
            cursor += 1
        cursors[i] = cursor
        if cursor < last and postings.windows[cursor] == window:
            _add_postings(postings.offsets, postings.steps, postings.begins[cursor], postings.ends[cursor], table[i], sums)


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


@njit_cached()
def _prune(rows: Any, scans: Any, count: int, least: int) -> int:
    """Drop candidates whose scan is below `least`; return how many remain."""
    remaining = 0
    for candidate in range(count):
        if scans[candidate] >= least:
            rows[remaining], scans[remaining] = rows[candidate], scans[candidate]
            remaining += 1
    return remaining


@njit_cached()
def _make_query_terms(vocabulary: int) -> Any:
    """Room for which terms a query has, bool [V], for the nearest cache, and their weights [V]."""
    return np.zeros(vocabulary, np.bool_), np.empty(vocabulary, np.float64)


@njit_cached()
def _set_query_terms(query_terms: Any, terms: Any, weights: Any) -> None:
    for i in range(len(terms)):
        query_terms[0][terms[i]], query_terms[1][terms[i]] = True, weights[i]


@njit_cached()
def _clear_query_terms(query_terms: Any, terms: Any) -> None:
    for i in range(len(terms)):
        query_terms[0][terms[i]] = False


@njit_cached()
def _score_document(row: int, documents: Any, query_terms: Any) -> tuple[float, bool]:
    """The score of a document, and whether it shares a term with the query."""
    (is_query_term, weights), total, shared = query_terms, 0.0, False
    for entry in range(documents.starts[row], documents.starts[row + 1]):
        term = documents.terms[entry]
        if is_query_term[term]:
            total += weights[term] * (np.float64(documents.weights[entry]) - documents.shift)
            shared = True
    return total + 0.0, shared  # −0 becomes 0


@njit_cached()
def _rank_candidates(candidates: Any, documents: Any, query_terms: Any, id_ranks: Any, rows: Any, scores: Any) -> None:
    """The best of the candidates that share a term, by score and then id rank -> rows [K], scores [K]; further entries stay."""
    candidate_rows, scans, best_scan, unit = candidates
    values, hits, keys = np.empty(len(scans), np.float32), np.empty(len(scans), np.int64), np.empty(len(scans), np.int64)
    bits, count, floor = values.view(np.int32), 0, np.float32(-np.inf)  # the K-th best score of those whose scan is among the best
    for first in (True, False):
        for i in range(len(scans)):
            if (scans[i] >= best_scan) == first and (first or scans[i] * unit * ROUNDING_SLACK >= floor):
                score, shared = _score_document(candidate_rows[i], documents, query_terms)
                if shared:
                    values[count], hits[count] = np.float32(score), candidate_rows[i]
                    ordered = bits[count] if bits[count] >= 0 else bits[count] ^ np.int32(0x7FFFFFFF)
                    keys[count] = (np.int64(ordered) << 32) | id_ranks[hits[count]]
                    count += 1
        order = np.argsort(keys[:count])  # by score, then id rank
        if count >= len(rows):
            floor = values[order[count - len(rows)]]
    for rank in range(min(count, len(rows))):
        best = order[count - 1 - rank]
        rows[rank], scores[rank] = hits[best], values[best]
