"""Compiled loops for scoring vectors. First, loops over 32 query tokens at once, as LLVM vectors: inside another loop, numba checks
a plain loop over the 32 for overlapping arrays, which takes six times as long. All arrays are C-contiguous.

Loops over float16 vectors, given as their bits (uint16) and read in place: conversion to bfloat16 and float32, scans, exact products.

Exact results have the same bits as the torch forms in `two_step`, with any number of threads.
"""

import platform
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from moeir.kernels.llvm_vectors import repeat_number
from moeir.kernels.numba_cache import njit_cached

LANES = 32


@intrinsic
def max_lookup_sum_32(typing: Any, centroid_table: Any, codeword_table: Any, codes: Any, leading: Any, others: Any, best: Any) -> Any:
    """best[i] = max_j centroid_table[codes[j], i] + Σ_s codeword_table[s, byte s of j, i] for 32 i: int16 [C, 32], int8 [S, 256, 32].

    The bytes of j are leading[j] and, unless others is [0, …], others[j].
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        arrays = [context.make_array(kind)(context, builder, one) for kind, one in zip(signature.args, arguments, strict=True)]
        centroids_at, codewords_at, codes_at, leading_at, others_at, best_at = (array.data for array in arrays)
        shapes = [cgutils.unpack_tuple(builder, array.shape) for array in arrays]
        tokens, words, size = shapes[3][0], shapes[1][1], shapes[1][1].type
        lanes, small = (ir.VectorType(ir.IntType(width), LANES) for width in (16, 8))
        none = builder.icmp_signed("==", shapes[4][0], ir.Constant(size, 0))
        more = builder.select(none, ir.Constant(size, 0), shapes[4][1])

        def load_vector(table: Any, row: Any, kind: Any) -> Any:
            address = builder.gep(table, [builder.mul(row, ir.Constant(size, LANES))])
            return builder.load(builder.bitcast(address, kind.as_pointer()), align=1)

        def load_number(array: Any, index: Any) -> Any:
            return builder.zext(builder.load(builder.gep(array, [index])), size)

        def add_bytes(total: Any, bytes_at: Any, row: Any, count: Any, width: Any, before: Any) -> None:
            """Four bytes at a time, then the rest one by one."""
            start, most = builder.mul(row, width), builder.and_(count, ir.Constant(size, -4))
            for begin, end, step in ((ir.Constant(size, 0), most, 4), (most, count, 1)):
                with cgutils.for_range_slice(builder, begin, end, ir.Constant(size, step), size) as (group, _):
                    for ahead in range(step):
                        byte_index = builder.add(group, ir.Constant(size, ahead))
                        byte = load_number(bytes_at, builder.add(start, byte_index))
                        index = builder.add(builder.mul(builder.add(before, byte_index), words), byte)
                        looked_up = builder.sext(load_vector(codewords_at, index, small), lanes)
                        builder.store(builder.add(builder.load(total), looked_up), total)

        maximum = cgutils.alloca_once_value(builder, ir.Constant(lanes, [-0x8000] * LANES))
        row_sum = cgutils.alloca_once(builder, lanes)
        with cgutils.for_range(builder, tokens) as token:
            builder.store(load_vector(centroids_at, load_number(codes_at, token.index), lanes), row_sum)
            add_bytes(row_sum, leading_at, token.index, shapes[3][1], shapes[3][1], ir.Constant(size, 0))
            add_bytes(row_sum, others_at, token.index, more, shapes[4][1], shapes[3][1])
            value, highest = builder.load(row_sum), builder.load(maximum)
            builder.store(builder.select(builder.icmp_signed(">", value, highest), value, highest), maximum)
        builder.store(builder.load(maximum), builder.bitcast(best_at, lanes.as_pointer()), align=2)
        return context.get_dummy_value()

    return types.none(centroid_table, codeword_table, codes, leading, others, best), generate


@intrinsic
def dot_32(typing: Any, lane_tokens: Any, singles: Any, products: Any) -> Any:
    """products[j, i] = Σ_d singles[j, d] · lane_tokens[d, i] for 32 i: float32 lane_tokens [D, 32], singles [n, D], products [n, 32].

    Two rows at a time.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        arrays = [context.make_array(kind)(context, builder, one) for kind, one in zip(signature.args, arguments, strict=True)]
        lane_tokens_at, singles_at, products_at = (array.data for array in arrays)
        rows, width = cgutils.unpack_tuple(builder, arrays[1].shape)
        size, lanes, fused = rows.type, ir.VectorType(ir.FloatType(), LANES), ("contract",)
        one, many = ir.Constant(size, 1), ir.Constant(size, LANES)
        last = builder.sub(rows, one)

        def vector_at(array: Any, row: Any) -> Any:
            return builder.bitcast(builder.gep(array, [builder.mul(row, many)]), lanes.as_pointer())

        with cgutils.for_range_slice(builder, ir.Constant(size, 0), rows, ir.Constant(size, 2), size) as (row, _):
            following = builder.add(row, one)
            pair = [row, builder.select(builder.icmp_signed("<", following, last), following, last)]
            sums = [cgutils.alloca_once(builder, lanes) for _ in pair]
            for total in sums:
                builder.store(ir.Constant(lanes, [0.0] * LANES), total)
            with cgutils.for_range(builder, width) as dimension:
                tokens = builder.load(vector_at(lane_tokens_at, dimension.index), align=4)
                for row_index, total in zip(pair, sums, strict=True):
                    number = builder.load(builder.gep(singles_at, [builder.add(builder.mul(row_index, width), dimension.index)]))
                    product = builder.fmul(repeat_number(builder, number, LANES), tokens, flags=fused)
                    builder.store(builder.fadd(builder.load(total), product, flags=fused), total)
            for row_index, total in zip(pair, sums, strict=True):
                builder.store(builder.load(total), vector_at(products_at, row_index), align=4)
        return context.get_dummy_value()

    return types.none(lane_tokens, singles, products), generate


def _make_comparison(comparison: str, numbers: Any) -> Any:
    """The code of an intrinsic whose bit i says how numbers[first + i] compares with a number, for 32 i."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        kind = ir.VectorType(context.get_value_type(signature.args[0].dtype), LANES)
        address = builder.bitcast(builder.gep(array.data, [arguments[1]]), kind.as_pointer())
        others = repeat_number(builder, arguments[2], LANES)
        mask = builder.icmp_signed(comparison, builder.load(address, align=numbers.dtype.bitwidth // 8), others)
        return builder.bitcast(mask, ir.IntType(32))

    return types.uint32(numbers, types.intp, numbers.dtype), generate


@intrinsic
def greater_mask_32(typing: Any, numbers: Any, first: Any, limit: Any) -> Any:
    """Bit i says whether numbers[first + i] > limit, for 32 i: integers [≥ first + 32], their limit of the same type -> uint32."""
    return _make_comparison(">", numbers)


@intrinsic
def equal_mask_32(typing: Any, numbers: Any, first: Any, number: Any) -> Any:
    """Bit i says whether numbers[first + i] is a number, for 32 i: integers [≥ first + 32], a number of the same type -> uint32."""
    return _make_comparison("==", numbers)


@intrinsic
def prefetch_line(typing: Any, numbers: Any, index: Any) -> Any:
    """Ask the processor to read numbers[index] into its cache. The index may be beyond the end.

    What it reads ahead without being asked ends with the page, of 4 KiB.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag])
        address = builder.gep(context.make_array(signature.args[0])(context, builder, arguments[0]).data, [arguments[1]])
        read, keep, data = (ir.Constant(flag, number) for number in (0, 3, 1))
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [builder.bitcast(address, byte), read, keep, data])
        return context.get_dummy_value()

    return types.none(numbers, types.intp), generate


@intrinsic
def lowest_bit(typing: Any, mask: Any) -> Any:
    """The index of the lowest bit that is set in a number that is not 0: uint32 -> intp."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.zext(builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1)), context.get_value_type(types.intp))

    return types.intp(types.uint32), generate


HALF_LANES, SUMS = 16, 4  # float16 numbers of a vector; sums that are added to in turn, so that none waits for its last addition


@intrinsic
def dot_float16(typing: Any, query: Any, float16_bits: Any) -> Any:
    """Σ_d query[d] · document[d] in float32, summed in any order, with float16 converted by the processor: float32 [D], bits uint16 [D]."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        arrays = [context.make_array(kind)(context, builder, one) for kind, one in zip(signature.args, arguments, strict=True)]
        (width,) = cgutils.unpack_tuple(builder, arrays[0].shape)
        size, number, lanes = width.type, ir.FloatType(), ir.VectorType(ir.FloatType(), HALF_LANES)
        halves, fused = ir.VectorType(ir.HalfType(), HALF_LANES), ("contract",)

        def add_product(total: Any, first: Any, kind: Any, half_kind: Any) -> None:
            """Add the product of a vector or a number that begins at `first`."""
            addresses = (builder.gep(array.data, [first]) for array in arrays)
            singles, float16 = (builder.bitcast(at, one.as_pointer()) for at, one in zip(addresses, (kind, half_kind), strict=True))
            product = builder.fmul(builder.load(singles, align=4), builder.fpext(builder.load(float16, align=2), kind), flags=fused)
            builder.store(builder.fadd(builder.load(total), product, flags=fused), total)

        totals = [cgutils.alloca_once_value(builder, ir.Constant(lanes, [0.0] * HALF_LANES)) for _ in range(SUMS)]
        step = ir.Constant(size, HALF_LANES * SUMS)
        most = builder.sub(width, builder.urem(width, step))
        with cgutils.for_range_slice(builder, ir.Constant(size, 0), most, step, size) as (first, _):
            for number_of_sum, total in enumerate(totals):
                add_product(total, builder.add(first, ir.Constant(size, number_of_sum * HALF_LANES)), lanes, halves)
        vector_sum, result = builder.load(totals[0]), cgutils.alloca_once_value(builder, ir.Constant(number, 0.0))
        for total in totals[1:]:
            vector_sum = builder.fadd(vector_sum, builder.load(total))
        for lane in range(HALF_LANES):
            part = builder.extract_element(vector_sum, ir.Constant(ir.IntType(32), lane))
            builder.store(builder.fadd(builder.load(result), part), result)
        with cgutils.for_range_slice(builder, most, width, ir.Constant(size, 1), size) as (rest, _):
            add_product(result, rest, number, ir.HalfType())
        return builder.load(result)

    return types.float32(query, float16_bits), generate


SIGN_BIT, MAGNITUDE_BITS, SMALLEST_NORMAL = np.uint16(0x8000), np.uint16(0x7FFF), np.uint16(0x400)
BF16_BIAS_SHIFT = np.uint16((127 - 15) << 7)
CACHE_LINE, PREFETCH_STEP, PREFETCH_DISTANCE = 32, 256, 1024  # 16-bit numbers of a line, converted at once, and read ahead of them
FLOAT32_BIAS_SHIFT = np.uint32((127 - 15) << 23)


@njit_cached(nogil=True)
def to_bfloat16(float16_bits: Any, bfloat16_bits: Any) -> None:
    """Round to bfloat16, ties to even; subnormal float16 numbers become 0: bits uint16 [n, D] -> bits uint16 [n, D]."""
    source, target = float16_bits.reshape(float16_bits.size), bfloat16_bits.reshape(bfloat16_bits.size)
    for first in range(0, len(source), PREFETCH_STEP):
        last = min(first + PREFETCH_STEP, len(source))
        for ahead in range(first + PREFETCH_DISTANCE, last + PREFETCH_DISTANCE, CACHE_LINE):
            prefetch_line(source, ahead)
        row_to_bfloat16(source[first:last], target[first:last])


@njit_cached()
def row_to_bfloat16(source: Any, target: Any) -> None:
    """`to_bfloat16` of one vector."""
    for i in range(len(source)):
        rest = np.uint16(source[i] & MAGNITUDE_BITS)
        even = np.uint16((rest >> np.uint16(3)) & np.uint16(1))
        nearest = np.uint16(np.uint16((rest + np.uint16(3) + even) >> np.uint16(3)) + BF16_BIAS_SHIFT)
        target[i] = np.uint16((nearest if rest >= SMALLEST_NORMAL else np.uint16(0)) | (source[i] & SIGN_BIT))


@njit_cached()
def to_float32(float16_bits: Any, bits: Any, values: Any) -> None:
    """Convert to float32: bits uint16 [D] -> values float32 [D], of which `bits` uint32 [D] is a view."""
    small = np.uint16(0)
    for i in range(len(float16_bits)):
        rest, sign = np.uint32(float16_bits[i] & MAGNITUDE_BITS), np.uint32(float16_bits[i] & SIGN_BIT) << np.uint32(16)
        bits[i] = sign | ((rest << np.uint32(13)) + FLOAT32_BIAS_SHIFT)
        small = np.uint16(small | np.uint16((float16_bits[i] & MAGNITUDE_BITS) < SMALLEST_NORMAL))
    if small:
        for i in range(len(float16_bits)):
            rest = float16_bits[i] & MAGNITUDE_BITS
            if rest < SMALLEST_NORMAL:
                single = np.float32(rest) * np.float32(2.0**-24)
                values[i] = -single if float16_bits[i] & SIGN_BIT else single


@njit_cached()
def pairwise_sum_loop(terms: Any, width: int) -> float:
    """`two_step.pairwise_sum` of terms float64 [width], which it overwrites."""
    span = 1
    while span < width:
        span *= 2
    while span > 1:
        span //= 2
        for i in range(width - span):
            terms[i] += terms[span + i]
        width = min(width, span)
    return terms[0] + 0.0 if width else 0.0  # −0 becomes 0


@njit_cached(parallel=True)
def exact_pair_dots(float16_bits: Any, queries: Any, query: Any, rows: Any, scores: Any) -> None:
    """`two_step.exact_dot` of chosen pairs: bits [N, D], queries float32 [Q, D], query [P], rows [P] -> scores float64 [P]."""
    width = queries.shape[1]
    for pair in numba.prange(len(rows)):
        bits, terms = np.empty(width, np.uint32), np.empty(width, np.float64)
        values, other = bits.view(np.float32), queries[query[pair]]
        to_float32(float16_bits[rows[pair]], bits, values)
        for i in range(width):
            terms[i] = np.float64(other[i]) * np.float64(values[i])
        scores[pair] = pairwise_sum_loop(terms, width)


def scan_few_queries(float16_bits: Any, queries: Any, scores: Any) -> None:
    """float32 products of few queries with all documents, read once: bits [n, D], queries float32 [Q, D] -> scores float32 [Q, n]."""
    scan = scan_by_conversion if converts_float16() else scan_by_bits
    scan(float16_bits, queries, scores)


def converts_float16() -> bool:
    """Whether compiled loops convert float16 to float32 by an instruction of the processor."""
    by_numba = vars(numba.config)
    return by_numba["CPU_NAME"] is None and (platform.machine() in ("aarch64", "arm64") or bool(get_host_cpu_features().get("f16c")))


@njit_cached(parallel=True)
def scan_by_conversion(float16_bits: Any, queries: Any, scores: Any) -> None:
    """`scan_few_queries` with float16 converted by the processor while it multiplies."""
    for part in numba.prange((len(float16_bits) + 255) // 256):
        for row in range(256 * part, min(256 * part + 256, len(float16_bits))):
            for query in range(len(queries)):
                scores[query, row] = dot_float16(queries[query], float16_bits[row])


@njit_cached(parallel=True)
def scan_by_bits(float16_bits: Any, queries: Any, scores: Any) -> None:
    """`scan_few_queries` on a processor that does not convert float16."""
    for part in numba.prange((len(float16_bits) + 255) // 256):
        bits, score = np.empty((1, float16_bits.shape[1]), np.uint32), np.empty(1, np.float32)
        values = bits.view(np.float32)
        for row in range(256 * part, min(256 * part + 256, len(float16_bits))):
            to_float32(float16_bits[row], bits[0], values[0])
            for query in range(len(queries)):
                approx_dots(queries[query], values, score)
                scores[query, row] = score[0]


@njit_cached(parallel=True)
def exact_maxsim_pairs(float16_bits: Any, starts: Any, lane_tokens: Any, bounds: Any, query: Any, rows: Any, scores: Any) -> None:
    """Exact MaxSim Σ_i max_j of chosen pairs, −∞ without tokens: float16_bits [T, D], starts [N + 1] -> float64 [P].

    `lane_tokens` float32 [Q, L/32, D, 32] holds the queries' tokens i, 32 adjacent. `bounds` [Q, L]: how far below a token's largest
    float32 product the largest exact one can be; a negative bound marks a token of zeros, which adds nothing. Only products within the
    bound are computed in float64.
    """
    blocks, width = lane_tokens.shape[1:3]
    for pair in numba.prange(len(rows)):
        first, count, query_row = starts[rows[pair]], starts[rows[pair] + 1] - starts[rows[pair]], query[pair]
        if count == 0:
            scores[pair] = -np.inf
            continue
        bits = np.empty((count, width), np.uint32)
        values, approximate, best = bits.view(np.float32), np.empty((count, LANES), np.float32), np.full(LANES * blocks, -np.inf)
        for j in range(count):
            to_float32(float16_bits[first + j], bits[j], values[j])
        for block in range(blocks):
            dot_32(lane_tokens[query_row, block], values, approximate)
            exact_token_maxima(
                lane_tokens[query_row, block], values, approximate, bounds[query_row, LANES * block :], best[LANES * block :]
            )
        token_count = 0
        for i in range(bounds.shape[1]):
            if bounds[query_row, i] >= 0.0:
                best[token_count] = best[i]
                token_count += 1
        scores[pair] = pairwise_sum_loop(best, token_count)


@njit_cached()
def exact_token_maxima(lane_tokens: Any, values: Any, approximate: Any, bounds: Any, best: Any) -> None:
    """Largest exact product of each of 32 tokens, lane_tokens [D, 32], with rows of values [n, D]; approximate [n, 32] -> best [≥ 32]."""
    thresholds, terms = np.full(LANES, np.float32(-np.inf)), np.empty(len(lane_tokens), np.float64)
    for j in range(len(approximate)):
        for i in range(LANES):
            thresholds[i] = max(thresholds[i], approximate[j, i])
    for i in range(LANES):
        bound = bounds[i] if i < len(bounds) else -1.0
        thresholds[i] = np.float32(np.float64(thresholds[i]) - bound) if bound >= 0.0 else np.float32(np.inf)
    for j in range(len(approximate)):
        any_near = 0
        for i in range(LANES):
            any_near |= approximate[j, i] >= thresholds[i]
        for i in range(LANES if any_near else 0):
            if approximate[j, i] >= thresholds[i]:
                for dimension in range(len(terms)):
                    terms[dimension] = np.float64(lane_tokens[dimension, i]) * np.float64(values[j, dimension])
                best[i] = max(best[i], pairwise_sum_loop(terms, len(terms)))


@njit_cached(fastmath=True)
def approx_dots(token: Any, values: Any, approximate: Any) -> None:
    """Products of token [D] with every row of values [n, D], summed in any order -> approximate [n]."""
    for j in range(len(values)):
        row, total = values[j], np.float32(0.0)
        for dimension in range(len(token)):
            total += token[dimension] * row[dimension]
        approximate[j] = total


@njit_cached(nogil=True)
def maxsim_scan(products: Any, starts: Any, first: int, count: int, tokens: int, scores: Any) -> None:
    """MaxSim Σ_i max_j of bfloat16 products, as bits int16 [t, Q · L], for texts first to first + count -> scores float32 [Q, count].

    A query has `tokens` columns. Texts without tokens get −∞. The maximum is taken over integer keys of the same order as the numbers.
    """
    width = len(scores) * tokens
    best, wide = np.empty(width, np.int16), np.empty(width, np.int32)
    values = wide.view(np.float32)
    for text in range(count):
        begin, end = starts[first + text] - starts[first], starts[first + text + 1] - starts[first]
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
            scores[query, text] = total if end > begin else np.float32(-np.inf)
