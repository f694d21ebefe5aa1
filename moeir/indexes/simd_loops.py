"""Compiled loops for scoring vectors on a CPU. Float16 vectors are read in place as their bits, uint16, and converted by the processor."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from moeir.kernels.numba_cache import njit_cached

PRODUCT_NUMBERS = 2**17  # of a product of matrices, rows × columns × dimensions: so few BLAS multiplies in the thread that asks


@intrinsic
def from_float16(typing: Any, bits: Any) -> Any:
    """The number of float16 bits: uint16 -> float32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fpext(builder.bitcast(arguments[0], ir.HalfType()), ir.FloatType())

    return types.float32(types.uint16), generate


@njit_cached(nogil=True)
def to_bfloat16(float16_bits: Any, bfloat16_bits: Any) -> None:
    """Round finite numbers to bfloat16, ties to even: bits uint16 [n, D] -> bits uint16 [n, D]."""
    source, target = float16_bits.reshape(float16_bits.size), bfloat16_bits.reshape(bfloat16_bits.size)
    for i in range(len(source)):
        bits = np.float32(from_float16(source[i])).view(np.uint32)
        target[i] = np.uint16((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16))


@njit_cached(nogil=True, fastmath=True)
def scan_few_queries(float16_bits: Any, queries: Any, scores: Any) -> None:
    """Products of few queries with documents, summed in any order: bits [n, D], queries float32 [Q, D] -> scores float32 [Q, n]."""
    for row in range(len(float16_bits)):
        document = float16_bits[row]
        for query in range(len(queries)):
            vector, total = queries[query], np.float32(0.0)
            for i in range(len(vector)):
                total += vector[i] * from_float16(document[i])
            scores[query, row] = total


@njit_cached(nogil=True)
def pairwise_sum_loop(terms: Any, width: int) -> float:
    """`vector_store.pairwise_sum` of the first `width` numbers of terms float64 [≥ width], which it overwrites."""
    span = 1
    while span < width:
        span *= 2
    while span > 1:
        span //= 2
        second_half = terms[span:width]
        for i in range(len(second_half)):
            terms[i] += second_half[i]
        width = min(width, span)
    return terms[0] + 0.0 if width else 0.0  # −0 becomes 0


@njit_cached(nogil=True)
def exact_dot_loop(vector: Any, document: Any, terms: Any) -> float:
    """`vector_store.exact_dot` of one pair: vector float32 [D], bits of a document [D], room for terms float64 [D]."""
    for i in range(len(terms)):
        terms[i] = np.float64(vector[i]) * np.float64(from_float16(document[i]))
    return pairwise_sum_loop(terms, len(terms))


@njit_cached(nogil=True)
def exact_pair_dots(float16_bits: Any, queries: Any, query: Any, rows: Any, scores: Any) -> None:
    """Exact products of chosen pairs: bits [N, D], queries float32 [Q, D], query [P], rows [P] -> scores float64 [P]."""
    terms = np.empty(queries.shape[1], np.float64)
    for pair in range(len(rows)):
        scores[pair] = exact_dot_loop(queries[query[pair]], float16_bits[rows[pair]], terms)


@njit_cached(nogil=True)
def exact_maxsim_pairs(float16_bits: Any, starts: Any, tokens: Any, bounds: Any, query: Any, rows: Any, scores: Any) -> None:
    """Exact MaxSim Σ_i max_j of chosen pairs, −∞ without tokens: bits [T, D], starts [N + 1], query [P], rows [P] -> scores float64 [P].

    The tokens of the queries are float32 [Q, L, D]. `bounds` [Q, L]: how far below a token's largest
    float32 product the largest exact one can be; a negative bound marks a token of zeros, which adds nothing. Only products within the
    bound are computed in float64.
    """
    length, width = tokens.shape[1:]
    step = max(1, PRODUCT_NUMBERS // max(length * width, 1))
    terms, best = np.empty(width, np.float64), np.empty(length, np.float64)
    for pair in range(len(rows)):
        first, last, block_row, used = starts[rows[pair]], starts[rows[pair] + 1], query[pair], 0
        values, products = np.empty((last - first, width), np.float32), np.empty((last - first, length), np.float32)
        for j in range(last - first):
            document, vector = float16_bits[first + j], values[j]
            for dimension in range(width):
                vector[dimension] = from_float16(document[dimension])
        for begin in range(0, last - first, step):
            np.dot(values[begin : begin + step], tokens[block_row].T, products[begin : begin + step])
        largest = np.full(length, np.float32(-np.inf))
        for j in range(last - first):
            row = products[j]
            for i in range(length):
                largest[i] = max(largest[i], row[i])
        for i in range(length):
            if bounds[block_row, i] >= 0.0:
                threshold, best[used] = np.float32(np.float64(largest[i]) - bounds[block_row, i]), -np.inf
                for j in range(last - first):
                    if products[j, i] >= threshold:
                        best[used] = max(best[used], exact_dot_loop(tokens[block_row, i], float16_bits[first + j], terms))
                used += 1
        scores[pair] = pairwise_sum_loop(best, used) if last > first else -np.inf


@njit_cached(nogil=True)
def maxsim_scan(products: Any, starts: Any, first: int, last: int, tokens: int, scores: Any, column: int) -> None:
    """MaxSim Σ_i max_j of bfloat16 products, as bits int16 [t, Q · L], for texts first to last (exclusive) -> scores float32 [Q, ≥ n], from
    this column on.

    A query has `tokens` columns of the products. Texts without tokens get −∞. The maximum is taken over integers of the same order as the
    numbers.
    """
    width = len(scores) * tokens
    best, wide = np.empty(width, np.int16), np.empty(width, np.int32)
    values = wide.view(np.float32)
    for text in range(first, last):
        begin, end = starts[text] - starts[first], starts[text + 1] - starts[first]
        best[:] = np.int16(-0x8000)
        for j in range(begin, end):
            row = products[j]
            for i in range(width):
                key = np.int16(row[i] ^ np.int16(np.int16(row[i] >> np.int16(15)) & np.int16(0x7FFF)))
                best[i] = max(best[i], key)
        for i in range(width):
            wide[i] = np.int32(np.int16(best[i] ^ np.int16(np.int16(best[i] >> np.int16(15)) & np.int16(0x7FFF)))) << np.int32(16)
        for query in range(len(scores)):
            total = np.float32(0.0)
            for i in range(query * tokens, query * tokens + tokens):
                total += values[i]
            scores[query, column + text - first] = total if end > begin else np.float32(-np.inf)
