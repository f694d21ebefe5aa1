"""Parser of lines of columns (TREC runs): words of up to 64 bytes as rows of uint64, and one column of float32.

Irregular input is left to the caller: lines with another number of words, with tabs between some of them only, blank lines, numbers in an
unusual form, control characters.
"""

from typing import Any

import numpy as np

from moeir.kernels.numba_cache import njit_cached

SKIP, NUMBER = -1, -2  # roles of a column; else the column's first index in a row of keys
IRREGULAR = -1  # returned for irregular input; -2 - c if the words of column c are too long

_ONE_BYTE, _BITS_PER_BYTE = np.uint64(1), np.uint64(8)
_TAB, _NEWLINE, _SPACE = 9, 10, 32
_POWERS = 10.0 ** np.arange(23)  # exact in float64
_MAX_EXACT_INTEGER = np.uint64(2**53)
_MAX_BEFORE_NEXT_DIGIT = np.uint64(10**18)  # below this, one more digit fits
_ROUNDING_MARGIN = 2.0**-51  # exceeds the error of two roundings in float64
_MIN_SAFE_FLOAT32, _MAX_SAFE_FLOAT32 = 1e-30, 3e38  # range of float32 without subnormals and overflow


@njit_cached()
def _is_space(letter: int) -> bool:
    """Whether a character is white space other than the newline."""
    return letter <= _SPACE and (letter == _SPACE or letter == 9 or 11 <= letter <= 13)


@njit_cached()
def _parse_number(letters: Any, position: Any) -> tuple[float, Any, bool]:
    """The float32 nearest to the float64 nearest to the word at `position`; its end, and whether both are certain.

    Up to 19 digits times a power of ten that float64 holds: exact to one rounding (Clinger 1990) where the digits fit 53 bits, and
    certain where they do not but every float64 nearby rounds to the same float32.
    """
    negative = letters[position] == 45
    if negative or letters[position] == 43:
        position += _ONE_BYTE
    digits, start, fraction_start = np.uint64(0), position, np.uint64(0)
    while True:
        letter = letters[position]
        if 48 <= letter <= 57:
            if digits >= _MAX_BEFORE_NEXT_DIGIT:
                return 0.0, position, False
            digits = digits * np.uint64(10) + np.uint64(letter - 48)
        elif letter == 46 and not fraction_start:
            fraction_start = position + _ONE_BYTE
        else:
            break
        position += _ONE_BYTE
    count = np.int64(position - start) - (fraction_start > 0)
    power, decimals = 0, np.int64(position - fraction_start) if fraction_start else 0
    if letters[position] == 69 or letters[position] == 101:
        position += _ONE_BYTE
        negative_exponent = letters[position] == 45
        if negative_exponent or letters[position] == 43:
            position += _ONE_BYTE
        start = position
        while 48 <= letters[position] <= 57 and position - start < np.uint64(4):
            power = power * 10 + np.int64(letters[position] - 48)
            position += _ONE_BYTE
        if position == start:
            return 0.0, position, False
        power = -power if negative_exponent else power
    power -= decimals
    if letters[position] > _SPACE or count == 0 or power > 22 or power < -22:
        return 0.0, position, False
    value = np.float64(digits)
    value = value * _POWERS[power] if power >= 0 else value / _POWERS[-power]
    if digits > _MAX_EXACT_INTEGER and (
        value < _MIN_SAFE_FLOAT32 or np.float32(value * (1.0 - _ROUNDING_MARGIN)) != np.float32(value * (1.0 + _ROUNDING_MARGIN))
    ):
        return 0.0, position, False
    return -value if negative else value, position, value < _MAX_SAFE_FLOAT32


@njit_cached()
def parse_lines(letters: Any, roles: Any, limits: Any, keys: Any, numbers: Any, row: int) -> int:  # noqa: C901 - numba compiles it as one loop
    """Parse the letters of whole, newline-terminated lines into keys [n, m] and numbers [n], from `row` on.

    roles [width]: SKIP, NUMBER, or the first index of the column's words in a row of keys; limits [width]: most uint64 they may take.
    -> the number of rows after parsing, or a negative code for irregular input.
    """
    position, size, width = np.uint64(0), np.uint64(len(letters)), len(roles)
    while position < size:
        tabs_between = 0  # columns, as between the first two
        for column in range(width):
            tabs = 0
            while _is_space(letters[position]):
                tabs += letters[position] == _TAB
                position += _ONE_BYTE
            tabs_between = tabs if column == 1 else tabs_between
            if tabs > 1 or tabs != tabs_between:
                return IRREGULAR
            start, role = position, roles[column]
            if role >= 0:
                key_column, key_limit = role, role + limits[column]
                word, bits_left = np.uint64(0), np.uint64(64)
                while letters[position] > _SPACE:
                    if bits_left == 0:
                        if key_column + 1 == key_limit:
                            return -2 - column
                        keys[row, key_column] = word
                        key_column, word, bits_left = key_column + 1, np.uint64(0), np.uint64(64)
                    word = word << _BITS_PER_BYTE | np.uint64(letters[position])
                    bits_left -= _BITS_PER_BYTE
                    position += _ONE_BYTE
                if position == start:
                    return IRREGULAR
                keys[row, key_column] = word << bits_left
                for rest in range(key_column + 1, key_limit):
                    keys[row, rest] = 0
            elif role == NUMBER:
                value, position, certain = _parse_number(letters, position)
                if not certain:
                    return IRREGULAR
                numbers[row] = value
            else:
                while letters[position] > _SPACE:
                    position += _ONE_BYTE
                if position == start:
                    return IRREGULAR
        while _is_space(letters[position]) and letters[position] != _TAB:
            position += _ONE_BYTE
        if letters[position] != _NEWLINE:
            return IRREGULAR
        position += _ONE_BYTE
        row += 1
    return row
