"""Compiled loops of 8-bit linear maps, over rows in float32. Each call uses one thread; any number may run at once."""

from typing import Any

import numpy as np

from moeir.kernels.numba_cache import njit_cached

LARGEST, ZERO = np.float32(127), 128  # as in `int8_linear`
ROUNDING = np.float32(ZERO + 0.5)  # the sum is positive, so that cutting off its fraction rounds
MAGNITUDE, INFINITY = np.int32(0x7FFFFFFF), np.int32(0x7F800000)  # magnitudes are ordered as their bits are; NaN is above infinity
ALGEBRA = {"contract", "reassoc", "nsz"}  # what the compiler may assume of float32


@njit_cached(fastmath=ALGEBRA, nogil=True)
def quantize_rows(rows: Any, integers: Any, scales: Any) -> None:
    """Rows float32 [n, K] -> integers uint8 [n, K], around ZERO, and scales float32 [n], NaN for a row with NaN or infinity."""
    bits, peak_bits = rows.view(np.int32), np.empty(1, np.int32)
    for number in range(len(rows)):
        row, row_bits, row_integers, largest = rows[number], bits[number], integers[number], np.int32(0)
        for i in range(len(row)):
            magnitude = np.int32(row_bits[i] & MAGNITUDE)
            largest = magnitude if magnitude > largest else largest
        peak_bits[0] = largest
        peak, is_finite = peak_bits.view(np.float32)[0], largest < INFINITY
        factor = LARGEST / peak if is_finite and peak > 0 else np.float32(0)
        for i in range(len(row)):
            row_integers[i] = np.uint8(np.int32(row[i] * factor + ROUNDING))
        scales[number] = peak / LARGEST if is_finite else np.float32(np.nan)


# Φ(x) = (1 + x · P(x²)) / 2 for |x| ≤ 4.5: P interpolates erf(x / √2) / x at Chebyshev's nodes; GELU is exact to 5e-5
EDGE, HALF, ONE = np.float32(4.5), np.float32(0.5), np.float32(1)
P0, P1, P2, P3, P4 = map(np.float32, (0.797879815, -0.132931605, 0.019861944, -0.00231638947, 0.00021009105))
P5, P6, P7, P8, P9 = map(np.float32, (-1.44597434e-05, 7.19002117e-07, -2.39879245e-08, 4.74938588e-10, -4.18498135e-12))


@njit_cached(fastmath=ALGEBRA, nogil=True)
def rescale_products(products: Any, scales: Any, bias: Any, gelu: bool) -> None:
    """scale · product + bias, or GELU of it, in place: float32 [n, N], scales [n], bias [N]."""
    for number in range(len(products)):
        values, scale = products[number], scales[number]
        for i in range(len(values)):
            values[i] = values[i] * scale + bias[i]
        if gelu:
            for i in range(len(values)):
                x = min(max(values[i], -EDGE), EDGE)
                square = x * x
                high = (((P9 * square + P8) * square + P7) * square + P6) * square + P5
                low = ((((high * square + P4) * square + P3) * square + P2) * square + P1) * square + P0
                values[i] *= HALF + HALF * min(max(x * low, -ONE), ONE)
