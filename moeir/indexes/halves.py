"""Stored float16 vectors as their bits, uint16, which compiled loops read where they lie: as bfloat16, as float32, in exact products.

What is exact here gives the same bits as the plain forms of `candidates`, in any number of threads.
"""

from typing import Any

import numba
import numpy as np

from moeir.indexes.lanes import LANES, lane_products
from moeir.kernels.compiling import compiled

SIGN, REST, SMALLEST_NORMAL, INFINITE = np.uint16(0x8000), np.uint16(0x7FFF), np.uint16(0x400), np.uint16(0x7C00)
REBIASED = np.uint16((127 - 15) << 7)
FLOAT_REBIASED = np.uint32((127 - 15) << 23)


@compiled()
def to_bfloat16(halves: Any, brains: Any) -> None:
    """The nearest bfloat16, ties to even; below float16's normal numbers 0: bits uint16 [n, D] -> bits uint16 [n, D]."""
    for row in range(len(halves)):
        round_row(halves[row], brains[row])


@compiled()
def round_row(source: Any, target: Any) -> None:
    """`to_bfloat16` of one vector."""
    for i in range(len(source)):
        rest = np.uint16(source[i] & REST)
        even = np.uint16((rest >> np.uint16(3)) & np.uint16(1))
        nearest = np.uint16(np.uint16((rest + np.uint16(3) + even) >> np.uint16(3)) + REBIASED)
        target[i] = np.uint16((nearest if rest >= SMALLEST_NORMAL else np.uint16(0)) | (source[i] & SIGN))


@compiled()
def to_single(halves: Any, bits: Any, singles: Any) -> None:
    """The same numbers as float32: bits uint16 [D] -> singles float32 [D], of which `bits` uint32 [D] are the bits."""
    small = np.uint16(0)
    for i in range(len(halves)):
        rest, sign = np.uint32(halves[i] & REST), np.uint32(halves[i] & SIGN) << np.uint32(16)
        bits[i] = sign | ((rest << np.uint32(13)) + FLOAT_REBIASED)
        small = np.uint16(small | np.uint16((halves[i] & REST) < SMALLEST_NORMAL))
    if small:
        for i in range(len(halves)):
            rest = halves[i] & REST
            if rest < SMALLEST_NORMAL:
                single = np.float32(rest) * np.float32(2.0**-24)
                singles[i] = -single if halves[i] & SIGN else single


@compiled(parallel=True)
def measure(halves: Any, norms: Any, lost: Any) -> None:
    """‖d‖ of each row, NaN where a number is none or infinite, and how far its bfloat16 lies from it: [n, D] -> float64 [n], [n]."""
    for row in numba.prange(len(halves)):
        source, width = halves[row], halves.shape[1]
        bits, rounded, coarse_bits = np.empty(width, np.uint32), np.empty(width, np.uint16), np.empty(width, np.uint32)
        singles, coarse = bits.view(np.float32), coarse_bits.view(np.float32)
        to_single(source, bits, singles)
        round_row(source, rounded)
        square, off, finite = 0.0, 0.0, True
        for i in range(width):
            coarse_bits[i] = np.uint32(rounded[i]) << np.uint32(16)
            finite &= (source[i] & INFINITE) != INFINITE
        for i in range(width):
            square += np.float64(singles[i]) ** 2
            off += (np.float64(singles[i]) - np.float64(coarse[i])) ** 2
        norms[row] = np.sqrt(square) if finite else np.nan
        lost[row] = np.sqrt(off)


@compiled()
def halve(terms: Any, width: int) -> float:
    """`candidates.halved` of terms float64 [width], which it overwrites."""
    span = 1
    while span < width:
        span *= 2
    while span > 1:
        span //= 2
        for i in range(width - span):
            terms[i] += terms[span + i]
        width = min(width, span)
    return terms[0] + 0.0 if width else 0.0  # −0 becomes 0


@compiled(parallel=True)
def pair_products(halves: Any, queries: Any, query: Any, rows: Any, scores: Any) -> None:
    """`candidates.dots` of chosen pairs: bits [N, D], queries float32 [Q, D], query [P], rows [P] -> scores float64 [P]."""
    width = queries.shape[1]
    for pair in numba.prange(len(rows)):
        bits, terms = np.empty(width, np.uint32), np.empty(width, np.float64)
        singles, other = bits.view(np.float32), queries[query[pair]]
        to_single(halves[rows[pair]], bits, singles)
        for i in range(width):
            terms[i] = np.float64(other[i]) * np.float64(singles[i])
        scores[pair] = halve(terms, width)


@compiled(parallel=True)
def few_products(halves: Any, queries: Any, scores: Any) -> None:
    """Products in float32 of a few queries with all documents, read once: bits [n, D], queries float32 [Q, D] -> scores float32 [Q, n]."""
    for part in numba.prange((len(halves) + 255) // 256):
        bits, found = np.empty((1, halves.shape[1]), np.uint32), np.empty(1, np.float32)
        singles = bits.view(np.float32)
        for row in range(256 * part, min(256 * part + 256, len(halves))):
            to_single(halves[row], bits[0], singles[0])
            for query in range(len(queries)):
                rough_products(queries[query], singles, found)
                scores[query, row] = found[0]


@compiled(parallel=True)
def late_products(halves: Any, starts: Any, turned: Any, bounds: Any, query: Any, rows: Any, scores: Any) -> None:
    """Σ_i max_j of exact products of chosen pairs, −∞ without tokens: halves [T, D], starts [N + 1] -> float64 [P].

    `turned` float32 [Q, L/32, D, 32] holds the queries' tokens i, 32 beside one another. `bounds` [Q, L]: how far below a token's largest
    float32 product the largest exact one can lie; a negative bound marks a token of zeros, which adds nothing. Only products within it are
    computed in float64.
    """
    blocks, width = turned.shape[1:3]
    for pair in numba.prange(len(rows)):
        first, count, own = starts[rows[pair]], starts[rows[pair] + 1] - starts[rows[pair]], query[pair]
        if count == 0:
            scores[pair] = -np.inf
            continue
        bits = np.empty((count, width), np.uint32)
        singles, rough, best = bits.view(np.float32), np.empty((count, LANES), np.float32), np.full(LANES * blocks, -np.inf)
        for j in range(count):
            to_single(halves[first + j], bits[j], singles[j])
        for block in range(blocks):
            lane_products(turned[own, block], singles, rough)
            best_products(turned[own, block], singles, rough, bounds[own, LANES * block :], best[LANES * block :])
        real = 0
        for i in range(bounds.shape[1]):
            if bounds[own, i] >= 0.0:
                best[real] = best[i]
                real += 1
        scores[pair] = halve(best, real)


@compiled()
def best_products(turned: Any, singles: Any, rough: Any, bounds: Any, best: Any) -> None:
    """The largest exact product of each of up to 32 tokens, turned [D, 32], with rows of singles [n, D]: rough [n, 32] -> best [≥ 32]."""
    least, terms = np.full(LANES, np.float32(-np.inf)), np.empty(len(turned), np.float64)
    for j in range(len(rough)):
        for i in range(LANES):
            least[i] = max(least[i], rough[j, i])
    for i in range(LANES):
        bound = bounds[i] if i < len(bounds) else -1.0
        least[i] = np.float32(np.float64(least[i]) - bound) if bound >= 0.0 else np.float32(np.inf)
    for j in range(len(rough)):
        near = 0
        for i in range(LANES):
            near |= rough[j, i] >= least[i]
        for i in range(LANES if near else 0):
            if rough[j, i] >= least[i]:
                for place in range(len(terms)):
                    terms[place] = np.float64(turned[place, i]) * np.float64(singles[j, place])
                best[i] = max(best[i], halve(terms, len(terms)))


@compiled(fastmath=True)
def rough_products(token: Any, singles: Any, rough: Any) -> None:
    """Products of token [D] with every row of singles [n, D], summed in any order -> rough [n]."""
    for j in range(len(singles)):
        row, total = singles[j], np.float32(0.0)
        for place in range(len(token)):
            total += token[place] * row[place]
        rough[j] = total


@compiled()
def best_of_texts(brains: Any, starts: Any, first: int, count: int, tokens: int, scores: Any) -> None:
    """Σ_i max_j of products in bfloat16, by their bits: int16 [t, Q · L], texts first to first + count -> scores float32 [Q, count].

    A query has `tokens` columns. Texts without tokens get −∞. The maximum is taken of keys, which are in the order of the numbers.
    """
    width = len(scores) * tokens
    best, wide = np.empty(width, np.int16), np.empty(width, np.int32)
    singles = wide.view(np.float32)
    for text in range(count):
        begin, end = starts[first + text] - starts[first], starts[first + text + 1] - starts[first]
        best[:] = np.int16(-0x8000)
        for j in range(begin, end):
            own = brains[j]
            for i in range(width):
                key = np.int16(own[i] ^ np.int16(np.int16(own[i] >> np.int16(15)) & np.int16(0x7FFF)))
                best[i] = max(best[i], key)
        for i in range(width):
            wide[i] = np.int32(np.int16(best[i] ^ np.int16(np.int16(best[i] >> np.int16(15)) & np.int16(0x7FFF)))) << np.int32(16)
        for query in range(len(scores)):
            total = np.float32(0.0)
            for i in range(query * tokens, query * tokens + tokens):
                total += singles[i]
            scores[query, text] = total if end > begin else np.float32(-np.inf)
