"""Compiled loops of layers in bfloat16 on a CPU: dropout, residual and normalisation in one pass, GELU, the softmax of attention.

Arrays hold bfloat16 as bits, uint16; sums are in float32. Dropped elements are chosen by a hash of their index and two seeds, so that a
backward loop finds them again. `threshold` is the probability of dropping times 2³², `scale` one over the probability of keeping. Each loop
does the part of its work from `first` to `last`, on the thread that calls it: of elements, rows, texts, or matrices of attention.
"""

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from moeir.kernels.int8_loops import ALGEBRA, EDGE, HALF, ONE, P0, P1, P2, P3, P4, P5, P6, P7, P8, P9
from moeir.kernels.llvm_vectors import repeat_number
from moeir.kernels.numba_cache import njit_cached

U16, U32, I16, I32, F32 = np.uint16, np.uint32, np.int16, np.int32, np.float32
BLOCKS = 16  # of rows whose gradients of a normalisation's weights are summed first: whatever the number of threads
SIGN, MAGNITUDE, INFINITY, NAN, LOWEST = U16(0x8000), U16(0x7FFF), U16(0x7F80), U16(0x7FC0), U16(0xFF7F)
E0, E1, E2, E3 = map(F32, (0.99992522, 0.69583354, 0.22606716, 0.07802453))  # 2^f for 0 ≤ f < 1, to 1e-4
LOG2_E, NORMAL = F32(1.4426950408889634), F32(0.3989422804014327)
LANES = 16  # numbers of a vector


def _rounds_to_bfloat16() -> bool:
    """Whether compiled loops round float32 to bfloat16 by an instruction of the processor."""
    return vars(numba.config)["CPU_NAME"] is None and bool(get_host_cpu_features().get("avx512bf16"))


BY_PROCESSOR = _rounds_to_bfloat16()  # numba reads it as a constant when it compiles


@intrinsic  # type: ignore[untyped-decorator]
def float_of(context: Any, bits: Any) -> Any:
    """The float32 of 32 bits."""
    return types.float32(types.uint32), lambda context, builder, signature, values: builder.bitcast(values[0], ir.FloatType())


@intrinsic  # type: ignore[untyped-decorator]
def bits_of(context: Any, number: Any) -> Any:
    """The 32 bits of a float32."""
    return types.uint32(types.float32), lambda context, builder, signature, values: builder.bitcast(values[0], ir.IntType(32))


@njit_cached(inline="always")
def _widen(bits: Any) -> Any:
    return float_of(U32(U32(bits) << U32(16)))


@njit_cached(inline="always")
def _narrow(number: Any) -> Any:
    bits = bits_of(F32(number))
    return U16(U32(bits + U32(0x7FFF) + U32(U32(bits >> U32(16)) & U32(1))) >> U32(16))  # to the nearest, ties to even


@njit_cached(inline="always")
def _power_of_two(exponent: Any) -> Any:
    """2^exponent; 0 below 2^-126. The exponent is at most 127."""
    shifted = max(F32(exponent + F32(127)), F32(0))
    whole = I32(shifted)
    part = shifted - F32(whole)
    return (((E3 * part + E2) * part + E1) * part + E0) * float_of(U32(U32(whole) << U32(23)))


@njit_cached(inline="always")
def _hash(index: Any, first: Any, second: Any) -> Any:
    """32 bits of an index: `lowbias32` (Wellons 2018), with a seed before each of its rounds."""
    bits = U32(U32(index) ^ first)
    bits = U32(U32(bits ^ U32(bits >> U32(16))) * U32(0x7FEB352D))
    bits = U32(bits ^ second)
    bits = U32(U32(bits ^ U32(bits >> U32(15))) * U32(0x846CA68B))
    return U32(bits ^ U32(bits >> U32(16)))


@njit_cached(fastmath=ALGEBRA, nogil=True)
def drop_elements(first: Any, last: Any, values: Any, seeds: Any, threshold: Any, scale: Any, outputs: Any) -> None:
    """Dropout: values [n] -> outputs [n]. The same call with a gradient gives that of the values."""
    first_seed, second_seed, start = seeds[0], seeds[1], U32(first)
    values, outputs = values[first:last], outputs[first:last]
    for i in range(len(values)):
        keep = _hash(U32(start + U32(i)), first_seed, second_seed) >= threshold
        outputs[i] = _narrow(_widen(values[i]) * (scale if keep else F32(0)))


@njit_cached(fastmath=ALGEBRA, nogil=True)
def add_norm_rows(
    first: Any,
    last: Any,
    update: Any,
    residual: Any,
    weight: Any,
    bias: Any,
    epsilon: Any,
    seeds: Any,
    threshold: Any,
    scale: Any,
    total: Any,
    out: Any,
    statistics: Any,
) -> None:
    """total = residual + dropout(update), out = its normalisation, statistics = its means and inverse deviations: [n, H], [2, n]."""
    first_seed, second_seed = seeds[0], seeds[1]
    width = update.shape[1]
    for number in range(first, last):
        update_row, residual_row, row, output_row = update[number], residual[number], total[number], out[number]
        start, mean = U32(number * width), F32(0)
        if threshold:
            for j in range(width):
                keep = _hash(U32(start + U32(j)), first_seed, second_seed) >= threshold
                row[j] = _narrow(_widen(residual_row[j]) + _widen(update_row[j]) * (scale if keep else F32(0)))
        else:
            for j in range(width):
                row[j] = _narrow(_widen(residual_row[j]) + _widen(update_row[j]))
        for j in range(width):
            mean += _widen(row[j])
        mean /= F32(width)
        variance = F32(0)
        for j in range(width):
            part = _widen(row[j]) - mean
            variance += part * part
        inverse = ONE / np.sqrt(variance / F32(width) + epsilon)
        for j in range(width):
            output_row[j] = _narrow((_widen(row[j]) - mean) * inverse * weight[j] + bias[j])
        statistics[0, number], statistics[1, number] = mean, inverse


@njit_cached(fastmath=ALGEBRA, nogil=True)
def add_norm_backward(
    first: Any,
    last: Any,
    gradient: Any,
    total: Any,
    statistics: Any,
    weight: Any,
    seeds: Any,
    threshold: Any,
    scale: Any,
    update: Any,
    residual: Any,
    weights: Any,
) -> None:
    """Gradients of `add_norm_rows`: of the update, of the residual [n, H], and of weight and bias in blocks [BLOCKS, 2, H].

    `update` is written if something was dropped: else it is that of the residual.
    """
    first_seed, second_seed = seeds[0], seeds[1]
    rows, width = gradient.shape
    size = (rows + BLOCKS - 1) // BLOCKS
    for block in range(first, last):
        of_weight, of_bias = weights[block, 0], weights[block, 1]
        for number in range(block * size, min(block * size + size, rows)):
            row, parts, mean, inverse = total[number], gradient[number], statistics[0, number], statistics[1, number]
            plain, along = F32(0), F32(0)
            for j in range(width):
                normal, part = (_widen(row[j]) - mean) * inverse, _widen(parts[j])
                of_weight[j] += part * normal
                of_bias[j] += part
                plain += part * weight[j]
                along += part * weight[j] * normal
            plain, along = plain / F32(width), along / F32(width)
            residual_row, update_row = residual[number], update[number]
            for j in range(width):
                normal = (_widen(row[j]) - mean) * inverse
                residual_row[j] = _narrow(inverse * (_widen(parts[j]) * weight[j] - plain - normal * along))
            if threshold:
                start = U32(number * width)
                for j in range(width):
                    keep = _hash(U32(start + U32(j)), first_seed, second_seed) >= threshold
                    update_row[j] = _narrow(_widen(residual_row[j]) * (scale if keep else F32(0)))


@njit_cached(inline="always")
def _normal_cdf(x: Any) -> Any:
    x = min(max(x, -EDGE), EDGE)
    square = x * x
    high = (((P9 * square + P8) * square + P7) * square + P6) * square + P5
    low = ((((high * square + P4) * square + P3) * square + P2) * square + P1) * square + P0
    return HALF + HALF * min(max(x * low, -ONE), ONE)


@njit_cached(fastmath=ALGEBRA, nogil=True)
def gelu_elements(first: Any, last: Any, values: Any, activated: Any) -> None:
    """x Φ(x): [n] -> [n]."""
    values, activated = values[first:last], activated[first:last]
    for i in range(len(values)):
        x = _widen(values[i])
        activated[i] = _narrow(x * _normal_cdf(x))


@njit_cached(fastmath=ALGEBRA, nogil=True)
def gelu_backward(first: Any, last: Any, gradient: Any, values: Any, out: Any) -> None:
    """gradient · (Φ(x) + x φ(x)): [n] -> [n]."""
    gradient, values, out = gradient[first:last], values[first:last], out[first:last]
    for i in range(len(values)):
        x = _widen(values[i])
        density = NORMAL * _power_of_two(max(F32(-0.5) * LOG2_E * x * x, F32(-126)))
        out[i] = _narrow(_widen(gradient[i]) * (_normal_cdf(x) + x * density))


@njit_cached(nogil=True)
def pad_heads(first: Any, last: Any, joint: Any, starts: Any, lengths: Any, heads: Any, batch: Any) -> None:
    """Rows [T, parts · heads · width] of n texts -> batch [parts, n · heads, L, width], with zeros after each text's tokens; as uint64."""
    parts, _, longest, width = batch.shape
    for text in range(first, last):
        length = lengths[text]
        for t in range(length):
            row = joint[starts[text] + t]
            for part in range(parts):
                for head in range(heads):
                    target, column = batch[part, text * heads + head, t], (part * heads + head) * width
                    for j in range(width):
                        target[j] = row[column + j]
        for part in range(parts):
            batch[part, text * heads : text * heads + heads, length:longest] = np.uint64(0)


@njit_cached(nogil=True)
def unpad_heads(first: Any, last: Any, batch: Any, starts: Any, lengths: Any, heads: Any, joint: Any) -> None:
    """The inverse of `pad_heads`."""
    parts, _, _, width = batch.shape
    for text in range(first, last):
        for t in range(lengths[text]):
            row = joint[starts[text] + t]
            for part in range(parts):
                for head in range(heads):
                    source, column = batch[part, text * heads + head, t], (part * heads + head) * width
                    for j in range(width):
                        row[column + j] = source[j]


@njit_cached(inline="always")
def _peak(row: Any) -> Any:
    """The largest number of a row; NaN if one of them is not finite."""
    top, largest = I16(-0x8000), U16(0)
    for j in range(len(row)):
        bits = I16(row[j])
        key = I16(bits ^ I16(I16(bits >> I16(15)) & I16(0x7FFF)))  # ordered as the numbers are
        top = max(key, top)
        largest = max(U16(row[j] & MAGNITUDE), largest)
    bits = U16(I16(top ^ I16(I16(top >> I16(15)) & I16(0x7FFF))))
    return _widen(bits if largest < INFINITY else NAN)


class _BFloat16(ir.Type):  # type: ignore[misc]
    """LLVM's bfloat, which llvmlite has no name for."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat16)

    def __hash__(self) -> int:
        return hash(_BFloat16)


@intrinsic  # type: ignore[untyped-decorator]
def _powers_by_processor(context: Any, row: Any, factor: Any, offset: Any) -> Any:
    """row = 2^(factor · row + offset), bits [n] in place, n a multiple of 16; returns the sum. As `_power_row`, in vectors."""
    numbers, integers, halves = (ir.VectorType(kind, LANES) for kind in (ir.FloatType(), ir.IntType(32), ir.IntType(16)))

    def constant(number: Any, kind: Any = numbers) -> Any:
        return ir.Constant(kind, [kind.element(number)] * LANES)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, values[0])
        (count,) = cgutils.unpack_tuple(builder, array.shape)
        size, fused = count.type, ("contract", "reassoc", "nsz")

        def multiply_add(left: Any, right: Any, addend: Any) -> Any:
            return builder.fadd(builder.fmul(left, right, flags=fused), addend, flags=fused)

        scale, shift = repeat_number(builder, values[1], LANES), builder.fadd(repeat_number(builder, values[2], LANES), constant(127.0))
        total = cgutils.alloca_once_value(builder, constant(0.0))
        with cgutils.for_range_slice(builder, ir.Constant(size, 0), count, ir.Constant(size, LANES), size) as (first, _):
            address = builder.bitcast(builder.gep(array.data, [first]), halves.as_pointer())
            wide = builder.shl(builder.zext(builder.load(address, align=2), integers), constant(16, integers))
            exponent = multiply_add(builder.bitcast(wide, numbers), scale, shift)
            exponent = builder.select(builder.fcmp_ordered(">", exponent, constant(0.0)), exponent, constant(0.0))
            whole = builder.fptosi(exponent, integers)
            part = builder.fsub(exponent, builder.sitofp(whole, numbers))
            power = constant(float(E3))
            for coefficient in (E2, E1, E0):
                power = multiply_add(power, part, constant(float(coefficient)))
            power = builder.fmul(power, builder.bitcast(builder.shl(whole, constant(23, integers)), numbers))
            builder.store(builder.fadd(builder.load(total), power), total)
            rounded = builder.bitcast(builder.fptrunc(power, ir.VectorType(_BFloat16(), LANES)), halves)
            builder.store(rounded, address, align=2)
        sums = builder.load(total)
        result = builder.extract_element(sums, ir.Constant(size, 0))
        for lane in range(1, LANES):
            result = builder.fadd(result, builder.extract_element(sums, ir.Constant(size, lane)), flags=fused)
        return result

    return types.float32(row, types.float32, types.float32), generate


@njit_cached(fastmath=ALGEBRA, nogil=True)
def _power_row(row: Any, factor: Any, offset: Any) -> Any:
    """row = 2^(factor · row + offset), bits [n] in place; returns the sum, float32."""
    if BY_PROCESSOR and len(row) % LANES == 0:
        return _powers_by_processor(row, factor, offset)
    total = F32(0)
    for j in range(len(row)):
        power = _power_of_two(_widen(row[j]) * factor + offset)
        total += power
        row[j] = _narrow(power)
    return total


# The score of padding becomes the lowest number, whose power is 0: loops over whole rows are vectors, those over a text's length are not.


@njit_cached(fastmath=ALGEBRA, nogil=True)
def softmax_powers(first: Any, last: Any, scores: Any, lengths: Any, heads: Any, factor: Any, inverse: Any) -> None:
    """exp of factor / log₂ e · (score − the largest of its row), in place [n · heads, L, L]; `inverse` [n · heads, L] of each sum."""
    width = scores.shape[2]
    for matrix in range(first, last):
        length = lengths[matrix // heads]
        for i in range(length):
            row = scores[matrix, i]
            for j in range(length, width):
                row[j] = LOWEST
            peak = _peak(row)
            total = _power_row(row, factor, F32(-peak * factor))
            inverse[matrix, i] = ONE / total if peak == peak else peak


@njit_cached(fastmath=ALGEBRA, nogil=True)
def unpad_scaled(first: Any, last: Any, batch: Any, inverse: Any, starts: Any, lengths: Any, heads: Any, out: Any) -> None:
    """Rows [n · heads, L, width] times `inverse` [n · heads, L] -> [T, heads · width]."""
    width = batch.shape[2]
    for text in range(first, last):
        for head in range(heads):
            matrix, column = text * heads + head, head * width
            for t in range(lengths[text]):
                row, target, factor = batch[matrix, t], out[starts[text] + t, column : column + width], inverse[matrix, t]
                for j in range(width):
                    target[j] = _narrow(_widen(row[j]) * factor)


@njit_cached(fastmath=ALGEBRA, nogil=True)
def softmax_dropout(
    first: Any, last: Any, scores: Any, lengths: Any, heads: Any, factor: Any, seeds: Any, threshold: Any, scale: Any, outputs: Any
) -> None:
    """Softmax of factor / log₂ e · score within each text, in matrix, and after dropout in `outputs`: [n · heads, L, L].

    A dropped probability has its sign bit set; what lies beyond a text's length is zero.
    """
    first_seed, second_seed = seeds[0], seeds[1]
    width = scores.shape[2]
    powers = np.empty(width, F32)
    for matrix in range(first, last):
        length = lengths[matrix // heads]
        for i in range(length):
            row, output_row, total = scores[matrix, i], outputs[matrix, i], F32(0)
            row[length:] = LOWEST
            peak = _peak(row)
            offset = -peak * factor
            for j in range(width):
                powers[j] = _power_of_two(_widen(row[j]) * factor + offset)
                total += powers[j]
            inverse = ONE / total if peak == peak else peak
            if threshold:
                start = U32((matrix * width + i) * width)
                for j in range(width):
                    keep = _hash(U32(start + U32(j)), first_seed, second_seed) >= threshold
                    powers[j] *= inverse * (ONE if keep else -ONE)
                for j in range(width):
                    row[j] = _narrow(powers[j])
                    output_row[j] = _narrow(max(powers[j], F32(0)) * scale)
            else:
                for j in range(width):
                    row[j] = _narrow(powers[j] * inverse)
        scores[matrix, length:] = U16(0)
        outputs[matrix, length:] = U16(0)


@njit_cached(fastmath=ALGEBRA, nogil=True)
def drop_marked(first: Any, last: Any, probabilities: Any, scale: Any, outputs: Any) -> None:
    """What `softmax_dropout` gave as `outputs`, from the probabilities with their marks: [n]."""
    probabilities, outputs = probabilities[first:last], outputs[first:last]
    for i in range(len(outputs)):
        bits = probabilities[i]
        outputs[i] = _narrow(_widen(bits) * scale) if bits < SIGN else U16(0)


@njit_cached(fastmath=ALGEBRA, nogil=True)
def softmax_backward(first: Any, last: Any, probabilities: Any, factor: Any, scale: Any, gradients: Any) -> None:
    """Gradients of the probabilities after dropout -> those of the scores, in matrix: [n · heads, L, L]."""
    width = probabilities.shape[2]
    for matrix in range(first, last):
        for i in range(width):
            row, gradient, mean = probabilities[matrix, i], gradients[matrix, i], F32(0)
            for j in range(width):
                bits = row[j]
                mean += _widen(U16(bits & MAGNITUDE)) * (_widen(gradient[j]) * scale if bits < SIGN else F32(0))
            for j in range(width):
                bits = row[j]
                change = (_widen(gradient[j]) * scale if bits < SIGN else F32(0)) - mean
                gradient[j] = _narrow(_widen(U16(bits & MAGNITUDE)) * change * factor)
