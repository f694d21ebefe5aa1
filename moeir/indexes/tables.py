"""Scoring is by table lookup instead of products, one query at a time. A query token's product with a decoded vector is its product with
the centroid plus one number for each byte of the residual. Both are looked up, for 32 query tokens at once, as integers in units of a step
chosen per query: int16 for centroids, int8 for bytes, so that tables fit in cache. Nothing depends on batches or threads.
"""

from typing import Any

import numpy as np

from moeir.indexes.lanes import LANES, max_lookup_sum_32, dot_32
from moeir.kernels.compiling import njit_cached

INT16_RANGE, INT8_RANGE = 32000.0, 127.0  # largest sum of lookups in int16, before rounding, and largest lookup of a byte in int8


@njit_cached(nogil=True)
def search_codes(
    tokens: Any,
    centroids: Any,
    rotation: Any,
    words: Any,
    starts: Any,
    codes: Any,
    leading: Any,
    residuals: Any,
    list_starts: Any,
    list_rows: Any,
    id_ranks: Any,
    nprobe: int,
    candidates: int,
    full_count: int,
    rows: Any,
    scores: Any,
) -> int:
    """The best texts of one query [L, D] by their decoded vectors -> rows int64 [K], scores float32 [K], unsorted; returns their number.

    Candidates are the texts with a token at one of each query token's `nprobe` best centroids; the best `candidates` of them by those
    centroids are scored with the first quarter of their bytes, the best `full_count` of those in full.
    """
    centroid_table, codeword_table, step, probed_centroids = query_tables(tokens, centroids, rotation, words, nprobe)
    hits, values = gather_candidates(centroid_table, probed_centroids, len(tokens), list_starts, list_rows, len(starts) - 1)
    hits = hits[top_k(hits, values, id_ranks, candidates)]
    if len(hits) > full_count:
        for i in range(len(hits)):
            token_range = slice(starts[hits[i]], starts[hits[i] + 1])
            values[i] = score_codes(centroid_table, codeword_table, codes[token_range], leading[token_range], residuals[:0])
        hits = hits[top_k(hits, values[: len(hits)], id_ranks, full_count)]
    for i in range(len(hits)):
        token_range = slice(starts[hits[i]], starts[hits[i] + 1])
        values[i] = score_codes(centroid_table, codeword_table, codes[token_range], leading[token_range], residuals[token_range])
    best = top_k(hits, values[: len(hits)], id_ranks, len(rows))
    for i in range(len(best)):
        rows[i] = hits[best[i]]
        scores[i] = np.float32(values[best[i]] * step)
    return len(best)


@njit_cached(nogil=True)
def score_texts(
    tokens: Any, centroids: Any, rotation: Any, words: Any, starts: Any, codes: Any, leading: Any, residuals: Any, rows: Any, scores: Any
) -> None:
    """Scores of chosen texts for one query, identical to those of `search_codes`: rows [P] -> scores float32 [P], −∞ without tokens."""
    centroid_table, codeword_table, step, _ = query_tables(tokens, centroids, rotation, words, 1)
    for i in range(len(rows)):
        token_range = slice(starts[rows[i]], starts[rows[i] + 1])
        steps = score_codes(centroid_table, codeword_table, codes[token_range], leading[token_range], residuals[token_range])
        scores[i] = np.float32(steps * step) if token_range.stop > token_range.start else np.float32(-np.inf)


@njit_cached()
def query_tables(tokens: Any, centroids: Any, rotation: Any, words: Any, nprobe: int) -> Any:
    """A query's centroid_table int16 [L/32, C, 32], codeword_table int8 [L/32, S, 256, 32], step size, best centroids [L/32, 32, n]."""
    length, width = tokens.shape
    blocks, groups, slots = (length + LANES - 1) // LANES, len(words), words.shape[2]
    lane_tokens, rotated = np.zeros((blocks, width, LANES), np.float32), np.zeros((blocks, rotation.shape[1], LANES), np.float32)
    centroid_products = np.empty((blocks, len(centroids), LANES), np.float32)
    codeword_products = np.empty((blocks, groups, words.shape[1], LANES), np.float32)
    best = np.empty((blocks, LANES, min(nprobe, len(centroids))), np.int64)
    step, max_sums, max_values = 1e-30, np.zeros(LANES, np.float32), np.zeros(LANES, np.float32)
    for block in range(blocks):
        for i in range(LANES * block, min(LANES * block + LANES, length)):
            for dimension in range(width):
                lane_tokens[block, dimension, i - LANES * block] = tokens[i, dimension]
        dot_32(lane_tokens[block], centroids, centroid_products[block])
        dot_32(lane_tokens[block], rotation.T.copy(), rotated[block])
        max_abs(centroid_products[block], max_sums)
        for group in range(groups):
            dot_32(rotated[block, slots * group : slots * group + slots], words[group], codeword_products[block, group])
            max_abs(codeword_products[block, group], max_values)
            for i in range(LANES):
                max_sums[i] += max_values[i]
                step = max(step, np.float64(max_values[i]) / INT8_RANGE)
        for i in range(LANES):
            step = max(step, np.float64(max_sums[i]) / INT16_RANGE)
        top_rows(centroid_products[block], best[block])
    centroid_table, codeword_table = np.empty(centroid_products.shape, np.int16), np.empty(codeword_products.shape, np.int8)
    scale, flat, whole = np.float32(1.0 / step), centroid_products.ravel(), centroid_table.ravel()
    for i in range(len(flat)):
        whole[i] = np.int16(np.rint(flat[i] * scale))
    flat, small = codeword_products.ravel(), codeword_table.ravel()
    for i in range(len(flat)):
        small[i] = np.int8(np.rint(flat[i] * scale))
    return centroid_table, codeword_table, step, best


@njit_cached()
def max_abs(values: Any, maxima: Any) -> None:
    """Largest absolute value of each column: values [n, 32] -> maxima [32]."""
    maxima[:] = 0.0
    for row in range(len(values)):
        for i in range(LANES):
            maxima[i] = max(maxima[i], abs(values[row, i]))


@njit_cached()
def top_rows(values: Any, best: Any) -> None:
    """Rows of the n largest values of each column, descending, ties by first row: values [C, 32] -> best [32, n]."""
    count = best.shape[1]
    top_values, least = np.full(best.shape, np.float32(-np.inf), np.float32), np.full(LANES, np.float32(-np.inf))
    best[:] = 0
    for row in range(len(values)):
        above = 0
        for i in range(LANES):
            above |= values[row, i] > least[i]
        for i in range(LANES if above else 0):
            if values[row, i] > least[i]:
                slot = count - 1
                while slot > 0 and top_values[i, slot - 1] < values[row, i]:
                    top_values[i, slot], best[i, slot] = top_values[i, slot - 1], best[i, slot - 1]
                    slot -= 1
                top_values[i, slot], best[i, slot] = values[row, i], row
                least[i] = top_values[i, count - 1]


@njit_cached()
def gather_candidates(centroid_table: Any, best: Any, tokens: int, list_starts: Any, list_rows: Any, documents: int) -> Any:
    """Texts with a token at one of these centroids, ascending, and their scores by centroids: best [L/32, 32, n] -> int64, int32 [hits].

    A query token adds its product with a text's best centroid minus that with its n-th best centroid, the estimate for tokens outside the
    lists: Σ_i max_j from the lists alone, as in WARP (Scheerer et al. 2025); no other data of a text is read.
    """
    sums, last_token = np.zeros(documents, np.int32), np.zeros(documents, np.int32)
    for i in range(tokens):
        probed_centroids, lane = best[i // LANES, i % LANES], i % LANES
        least = np.int32(centroid_table[i // LANES, probed_centroids[-1], lane])
        for code in probed_centroids:
            gain = np.int32(np.int32(centroid_table[i // LANES, code, lane]) - least)
            for position in range(list_starts[code], list_starts[code + 1]):
                row = list_rows[position]
                if last_token[row] != i + 1:  # lists are in order of centroid score
                    last_token[row] = i + 1
                    sums[row] += gain
    hits = np.flatnonzero(last_token)
    return hits, sums[hits]


@njit_cached()
def top_k(hits: Any, values: Any, id_ranks: Any, count: int) -> Any:
    """Indices of the `count` hits with the largest values int32 [n]; ties at the cut go to the highest id rank."""
    if len(hits) <= count:
        return np.arange(len(hits))
    cut = np.partition(values, len(values) - count)[len(values) - count]
    equal = np.flatnonzero(values == cut)
    free = count - np.sum(values > cut)
    if len(equal) > free:
        equal = equal[np.argsort(-id_ranks[hits[equal]])[:free]]
    keep = values > cut
    keep[equal] = True
    return np.flatnonzero(keep)


@njit_cached()
def score_codes(centroid_table: Any, codeword_table: Any, codes: Any, leading: Any, residuals: Any) -> int:
    """MaxSim Σ_i max_j in steps with a text's token vectors [n], decoded from leading bytes [n, s] and the other bytes [n, S − s].

    Either may be empty, [0, s] or [0, S − s]; without both, only the centroids count.
    """
    total, best = 0, np.empty(LANES, np.int16)
    for block in range(len(centroid_table)):
        max_lookup_sum_32(centroid_table[block], codeword_table[block], codes, leading, residuals, best)
        for i in range(LANES):
            total += best[i]
    return total
