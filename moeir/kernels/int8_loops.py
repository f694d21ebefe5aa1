"""Compiled loops of 8-bit linear maps, over rows in float32, or in bfloat16, given as bits. Each call uses one thread; any number may run
at once. A row with NaN or infinity gets the scale NaN.
"""

from typing import Any

import numpy as np

from moeir.kernels.numba_cache import njit_cached

LARGEST, ZERO = np.float32(127), 128  # as in `int8_linear`
ROUNDING = np.float32(ZERO + 0.5)  # the sum is positive, so that cutting off its fraction rounds
WORD, MAGNITUDE_16, MAGNITUDE_32 = np.uint32(16), np.uint16(0x7FFF), np.int32(0x7FFFFFFF)
INFINITY_16, INFINITY_32 = np.uint16(0x7F80), np.int32(0x7F800000)  # magnitudes are ordered as their bits are; NaN is above infinity
ALGEBRA = {"contract", "reassoc", "nsz"}  # what the compiler may assume of float32


@njit_cached(fastmath=ALGEBRA, nogil=True)
def _quantize_row(values: Any, peak: Any, finite: bool, integers: Any) -> Any:
    factor = LARGEST / peak if finite and peak > 0 else np.float32(0)
    for i in range(len(values)):
        integers[i] = np.uint8(np.int32(values[i] * factor + ROUNDING))
    return peak / LARGEST if finite else np.float32(np.nan)


@njit_cached(fastmath=ALGEBRA, nogil=True)
def quantize_bfloat16(rows: Any, integers: Any, scales: Any) -> None:
    """Bits uint16 [n, K] -> integers uint8 [n, K], around ZERO, and scales float32 [n]."""
    bits, peak = np.empty(rows.shape[1], np.uint32), np.empty(1, np.uint32)
    values = bits.view(np.float32)
    for number in range(len(rows)):
        row, largest = rows[number], np.uint16(0)
        for i in range(len(row)):
            bits[i] = np.uint32(row[i]) << WORD
            magnitude = np.uint16(row[i] & MAGNITUDE_16)
            largest = magnitude if magnitude > largest else largest
        peak[0] = np.uint32(largest) << WORD
        scales[number] = _quantize_row(values, peak.view(np.float32)[0], largest < INFINITY_16, integers[number])


@njit_cached(fastmath=ALGEBRA, nogil=True)
def quantize_float32(rows: Any, integers: Any, scales: Any) -> None:
    """Rows float32 [n, K] -> integers uint8 [n, K], around ZERO, and scales float32 [n]."""
    bits, peak = rows.view(np.int32), np.empty(1, np.int32)
    for number in range(len(rows)):
        row, largest = bits[number], np.int32(0)
        for i in range(len(row)):
            magnitude = np.int32(row[i] & MAGNITUDE_32)
            largest = magnitude if magnitude > largest else largest
        peak[0] = largest
        scales[number] = _quantize_row(rows[number], peak.view(np.float32)[0], largest < INFINITY_32, integers[number])


# Φ(x) = (1 + x · P(x²)) / 2 for |x| ≤ 4.5: P interpolates erf(x / √2) / x at Chebyshev's nodes; GELU is exact to 5e-5
EDGE, HALF, ONE = np.float32(4.5), np.float32(0.5), np.float32(1)
P0, P1, P2, P3, P4 = map(np.float32, (0.797879815, -0.132931605, 0.019861944, -0.00231638947, 0.00021009105))
P5, P6, P7, P8, P9 = map(np.float32, (-1.44597434e-05, 7.19002117e-07, -2.39879245e-08, 4.74938588e-10, -4.18498135e-12))


@njit_cached(fastmath=ALGEBRA, nogil=True)
def _rescale_row(values: Any, scale: Any, bias: Any, gelu: bool) -> None:
    for i in range(len(values)):
        values[i] = values[i] * scale + bias[i]
    if gelu:
        for i in range(len(values)):
            x = min(max(values[i], -EDGE), EDGE)
            square = x * x
            high = (((P9 * square + P8) * square + P7) * square + P6) * square + P5
            low = ((((high * square + P4) * square + P3) * square + P2) * square + P1) * square + P0
            values[i] *= HALF + HALF * min(max(x * low, -ONE), ONE)


@njit_cached(nogil=True)
def _round_row(bits: Any, row: Any) -> None:
    """float32 to bfloat16, both as bits, to the nearest, ties to even: [N] -> [N]."""
    for i in range(len(row)):
        row[i] = np.uint16((bits[i] + np.uint32(0x7FFF) + ((bits[i] >> WORD) & np.uint32(1))) >> WORD)


@njit_cached(fastmath=ALGEBRA, nogil=True)
def rescale_float32(products: Any, scales: Any, bias: Any, gelu: bool) -> None:
    """scale · product + bias, or GELU of it, in place: float32 [n, N], scales [n], bias [N]."""
    for number in range(len(products)):
        _rescale_row(products[number], scales[number], bias, gelu)


@njit_cached(fastmath=ALGEBRA, nogil=True)
def rescale_bfloat16(products: Any, scales: Any, bias: Any, gelu: bool) -> None:
    """`rescale_float32` of products in bfloat16, given as bits uint16 [n, N]."""
    width = products.shape[1]
    bits = np.empty(width, np.uint32)
    values = bits.view(np.float32)
    for number in range(len(products)):
        row = products[number]
        for i in range(width):
            bits[i] = np.uint32(row[i]) << WORD
        _rescale_row(values, scales[number], bias, gelu)
        _round_row(bits, row)


@njit_cached(fastmath=ALGEBRA, nogil=True)
def add_norm_bfloat16(
    products: Any, scales: Any, bias: Any, residual: Any, weight: Any, norm_bias: Any, epsilon: Any, normalized: Any
) -> None:
    """The normalisation of residual + scale · product + bias, affine: bits uint16 [n, N], scales [n], others [N] -> bits uint16 [n, N]."""
    width = products.shape[1]
    bits, wide = np.empty(width, np.uint32), np.empty(width, np.uint32)
    values, update = bits.view(np.float32), wide.view(np.float32)
    for number in range(len(products)):
        row, residual_row, out, scale = products[number], residual[number], normalized[number], scales[number]
        for i in range(width):
            bits[i] = np.uint32(residual_row[i]) << WORD
            wide[i] = np.uint32(row[i]) << WORD
        mean, variance = np.float32(0), np.float32(0)
        for i in range(width):
            values[i] += update[i] * scale + bias[i]
            mean += values[i]
        mean /= np.float32(width)
        for i in range(width):
            values[i] -= mean
            variance += values[i] * values[i]
        inverse = ONE / np.sqrt(variance / np.float32(width) + epsilon)
        for i in range(width):
            values[i] = values[i] * inverse * weight[i] + norm_bias[i]
        _round_row(bits, out)
