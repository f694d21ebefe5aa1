"""Late interaction with quantised token vectors, one query at a time, by tables instead of products.

A query's product with a decoded vector is its product with the centroid and one number for each byte of the residual. Both are looked up,
for 32 query tokens at once, as whole numbers of steps that are the query's own: int16 for centroids, int8 for bytes, small enough to stay
near the processor. A query's tables are its own, so nothing depends on batches or threads.
"""

from typing import Any

import numpy as np

from moeir.indexes.lanes import LANES, best_sums, lane_products
from moeir.kernels.compiling import compiled

ROOM, SMALL_ROOM = 32000.0, 127.0  # what the largest sum of lookups may reach in int16, roundings aside, and one of a byte in int8


@compiled(nogil=True)
def search(
    tokens: Any, centroids: Any, rotation: Any, words: Any, starts: Any, codes: Any, leading: Any, residuals: Any,
    list_starts: Any, list_rows: Any, places: Any, nprobe: int, candidates: int, chosen: int, rows: Any, scores: Any,
) -> int:
    """The best texts of one query [L, D] by their decoded vectors -> rows int64 [K], scores float32 [K], in any order; how many.

    Candidates are the texts with a token at one of each query token's `nprobe` best centroids; the best `candidates` of them by those
    centroids are scored with the first quarter of their bytes, the best `chosen` of those in full.
    """
    near, left, step, best = tabled(tokens, centroids, rotation, words, nprobe)
    found, values = gathered(near, best, len(tokens), list_starts, list_rows, len(starts) - 1)
    found = found[first(found, values, places, candidates)]
    if len(found) > chosen:
        for i in range(len(found)):
            own = slice(starts[found[i]], starts[found[i] + 1])
            values[i] = by_bytes(near, left, codes[own], leading[own], residuals[:0])
        found = found[first(found, values[: len(found)], places, chosen)]
    for i in range(len(found)):
        own = slice(starts[found[i]], starts[found[i] + 1])
        values[i] = by_bytes(near, left, codes[own], leading[own], residuals[own])
    kept = first(found, values[: len(found)], places, len(rows))
    for i in range(len(kept)):
        rows[i] = found[kept[i]]
        scores[i] = np.float32(values[kept[i]] * step)
    return len(kept)


@compiled(nogil=True)
def paired(
    tokens: Any, centroids: Any, rotation: Any, words: Any, starts: Any, codes: Any, leading: Any, residuals: Any, rows: Any, scores: Any
) -> None:
    """The scores `search` gives to chosen texts of one query: rows [P] -> scores float32 [P], −∞ without tokens."""
    near, left, step, _ = tabled(tokens, centroids, rotation, words, 1)
    for i in range(len(rows)):
        own = slice(starts[rows[i]], starts[rows[i] + 1])
        steps = by_bytes(near, left, codes[own], leading[own], residuals[own])
        scores[i] = np.float32(steps * step) if own.stop > own.start else np.float32(-np.inf)


@compiled()
def tabled(tokens: Any, centroids: Any, rotation: Any, words: Any, nprobe: int) -> Any:
    """A query's tables near int16 [L/32, C, 32] and left int8 [L/32, S, 256, 32], what a step is worth, best centroids [L/32, 32, n]."""
    length, width = tokens.shape
    blocks, groups, slots = (length + LANES - 1) // LANES, len(words), words.shape[2]
    turned, spread = np.zeros((blocks, width, LANES), np.float32), np.zeros((blocks, rotation.shape[1], LANES), np.float32)
    exact, pieces = np.empty((blocks, len(centroids), LANES), np.float32), np.empty((blocks, groups, words.shape[1], LANES), np.float32)
    best = np.empty((blocks, LANES, min(nprobe, len(centroids))), np.int64)
    step, reach, most = 1e-30, np.zeros(LANES, np.float32), np.zeros(LANES, np.float32)
    for block in range(blocks):
        for i in range(LANES * block, min(LANES * block + LANES, length)):
            for place in range(width):
                turned[block, place, i - LANES * block] = tokens[i, place]
        lane_products(turned[block], centroids, exact[block])
        lane_products(turned[block], rotation.T.copy(), spread[block])
        largest(exact[block], reach)
        for group in range(groups):
            lane_products(spread[block, slots * group : slots * group + slots], words[group], pieces[block, group])
            largest(pieces[block, group], most)
            for i in range(LANES):
                reach[i] += most[i]
                step = max(step, np.float64(most[i]) / SMALL_ROOM)
        for i in range(LANES):
            step = max(step, np.float64(reach[i]) / ROOM)
        best_rows(exact[block], best[block])
    near, left = np.empty(exact.shape, np.int16), np.empty(pieces.shape, np.int8)
    scale, flat, whole = np.float32(1.0 / step), exact.ravel(), near.ravel()
    for i in range(len(flat)):
        whole[i] = np.int16(np.rint(flat[i] * scale))
    flat, small = pieces.ravel(), left.ravel()
    for i in range(len(flat)):
        small[i] = np.int8(np.rint(flat[i] * scale))
    return near, left, step, best


@compiled()
def largest(values: Any, reach: Any) -> None:
    """The largest size of each column: values [n, 32] -> reach [32]."""
    reach[:] = 0.0
    for row in range(len(values)):
        for i in range(LANES):
            reach[i] = max(reach[i], abs(values[row, i]))


@compiled()
def best_rows(values: Any, best: Any) -> None:
    """Rows of the n largest values of each column, in order, of equal ones the first: values [C, 32] -> best [32, n]."""
    count = best.shape[1]
    kept, least = np.full(best.shape, np.float32(-np.inf), np.float32), np.full(LANES, np.float32(-np.inf))
    best[:] = 0
    for row in range(len(values)):
        above = 0
        for i in range(LANES):
            above |= values[row, i] > least[i]
        for i in range(LANES if above else 0):
            if values[row, i] > least[i]:
                hole = count - 1
                while hole > 0 and kept[i, hole - 1] < values[row, i]:
                    kept[i, hole], best[i, hole] = kept[i, hole - 1], best[i, hole - 1]
                    hole -= 1
                kept[i, hole], best[i, hole] = values[row, i], row
                least[i] = kept[i, count - 1]


@compiled()
def gathered(near: Any, best: Any, tokens: int, list_starts: Any, list_rows: Any, documents: int) -> Any:
    """Texts with a token at one of these centroids, ascending, and what those say of them: best [L/32, 32, n] -> int64, int32 [found].

    A query token adds its product with a text's best centroid, less that with its n-th best centroid, which stands for all that a list
    does not show: Σ_i max_j by the lists alone, as WARP does it (Scheerer et al. 2025), and nothing else of a text is read.
    """
    sums, seen = np.zeros(documents, np.int32), np.zeros(documents, np.int32)
    for i in range(tokens):
        own, lane = best[i // LANES, i % LANES], i % LANES
        least = np.int32(near[i // LANES, own[-1], lane])
        for code in own:
            gain = np.int32(np.int32(near[i // LANES, code, lane]) - least)
            for place in range(list_starts[code], list_starts[code + 1]):
                row = list_rows[place]
                if seen[row] != i + 1:  # lists come best first
                    seen[row] = i + 1
                    sums[row] += gain
    found = np.flatnonzero(seen)
    return found, sums[found]


@compiled()
def first(found: Any, values: Any, places: Any, count: int) -> Any:
    """Which `count` of `found` have the largest values int32 [n]; of equal ones at the cut those of the highest place."""
    if len(found) <= count:
        return np.arange(len(found))
    cut = np.partition(values, len(values) - count)[len(values) - count]
    equal = np.flatnonzero(values == cut)
    room = count - np.sum(values > cut)
    if len(equal) > room:
        equal = equal[np.argsort(-places[found[equal]])[:room]]
    keep = values > cut
    keep[equal] = True
    return np.flatnonzero(keep)


@compiled()
def by_bytes(near: Any, left: Any, codes: Any, leading: Any, residuals: Any) -> int:
    """Σ_i max_j of products with a text's token vectors [n] in steps, decoded from their leading bytes [n, s] and their others [n, S − s].

    Either may be left out, [0, s] and [0, S − s]: without both what counts are the centroids.
    """
    total, best = 0, np.empty(LANES, np.int16)
    for block in range(len(near)):
        best_sums(near[block], left[block], codes, leading, residuals, best)
        for i in range(LANES):
            total += best[i]
    return total
