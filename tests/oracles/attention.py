"""Windowed attention and rotary positions by slow, obvious loops, in Python numbers."""

import cmath

from tests.oracles import representations


def windowed_attention(query, key, value, key_mask, window):
    """Each token attends to the unmasked tokens at most `window` away, or to itself where there are none. Arguments are lists of rows."""
    mixed = []
    for position, query_row in enumerate(query):
        visible = [attended and abs(key_position - position) <= window for key_position, attended in enumerate(key_mask)]
        visible = visible if any(visible) else [key_position == position for key_position in range(len(key))]
        mixed += representations.attention([query_row], key, value, visible)
    return mixed


def apply_rotary(row, position, theta):
    """Numbers i and i + width / 2 of a row are one complex number; it turns by position · theta^(-2 i / width)."""
    half = len(row) // 2
    turned = [complex(row[i], row[i + half]) * cmath.exp(1j * position * theta ** (-2 * i / len(row))) for i in range(half)]
    return [number.real for number in turned] + [number.imag for number in turned]
