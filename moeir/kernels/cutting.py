"""Text lines of words between white space, cut into numbers: words of up to 64 bytes as rows of uint64, and one column of float32.

What is not of that shape is not cut here: a line of another number of words, a blank line, a number in an unusual form, control codes.
"""

from typing import Any

import numpy as np

from moeir.kernels.compiling import compiled

SKIPPED, NUMBER = -1, -2  # what a column may be; else its first place in a row of keys
OTHERWISE = -1  # the block is of another shape; a column c whose words are too long is -2 - c

_ONE, _BYTE = np.uint64(1), np.uint64(8)
_NEWLINE, _SPACE = 10, 32
_POWERS = 10.0 ** np.arange(23)  # exact in float64
_EXACT = np.uint64(2**53)
_ROOM = np.uint64(10**18)  # one more digit still fits
_NEAR = 2.0**-51  # above all that two roundings in float64 can lose
_LEAST, _MOST = 1e-30, 3e38  # of a float32 that is neither tiny nor near infinity


@compiled()
def _white(letter: int) -> bool:
    """White space but the newline."""
    return letter <= _SPACE and (letter == _SPACE or letter == 9 or 11 <= letter <= 13)


@compiled()
def _number(letters: Any, at: Any) -> tuple[float, Any, bool]:
    """The float32 nearest to the float64 nearest to the word that begins at `at`; its end, and whether both are certain.

    Up to 19 digits times a power of ten that float64 holds: exact to one rounding (Clinger 1990) where the digits fit 53 bits, and
    certain where they do not but every float64 nearby rounds to the same float32.
    """
    negative = letters[at] == 45
    if negative or letters[at] == 43:
        at += _ONE
    digits, begin, pointed = np.uint64(0), at, np.uint64(0)
    while True:
        letter = letters[at]
        if 48 <= letter <= 57:
            if digits >= _ROOM:
                return 0.0, at, False
            digits = digits * np.uint64(10) + np.uint64(letter - 48)
        elif letter == 46 and not pointed:
            pointed = at + _ONE
        else:
            break
        at += _ONE
    count = np.int64(at - begin) - (pointed > 0)
    power, places = 0, np.int64(at - pointed) if pointed else 0
    if letters[at] == 69 or letters[at] == 101:
        at += _ONE
        below = letters[at] == 45
        if below or letters[at] == 43:
            at += _ONE
        begin = at
        while 48 <= letters[at] <= 57 and at - begin < np.uint64(4):
            power = power * 10 + np.int64(letters[at] - 48)
            at += _ONE
        if at == begin:
            return 0.0, at, False
        power = -power if below else power
    power -= places
    if letters[at] > _SPACE or count == 0 or power > 22 or power < -22:
        return 0.0, at, False
    value = np.float64(digits)
    value = value * _POWERS[power] if power >= 0 else value / _POWERS[-power]
    if digits > _EXACT and (value < _LEAST or np.float32(value * (1.0 - _NEAR)) != np.float32(value * (1.0 + _NEAR))):
        return 0.0, at, False
    return -value if negative else value, at, value < _MOST


@compiled()
def cut(letters: Any, roles: Any, limits: Any, keys: Any, numbers: Any, row: int) -> int:
    """Rows of keys [n, m] and numbers [n], from `row` on, of the letters of whole lines, the last of which ends too.

    roles [width]: SKIPPED, NUMBER, or where in a row of keys the column's words begin; limits [width]: how many uint64 they may take.
    -> how many rows there are then, or what is unlike the rest, below 0.
    """
    at, size, width = np.uint64(0), np.uint64(len(letters)), len(roles)
    while at < size:
        for column in range(width):
            while _white(letters[at]):
                at += _ONE
            begin, role = at, roles[column]
            if role >= 0:
                place, most = role, role + limits[column]
                word, left = np.uint64(0), np.uint64(64)
                while letters[at] > _SPACE:
                    if left == 0:
                        if place + 1 == most:
                            return -2 - column
                        keys[row, place] = word
                        place, word, left = place + 1, np.uint64(0), np.uint64(64)
                    word = word << _BYTE | np.uint64(letters[at])
                    left -= _BYTE
                    at += _ONE
                if at == begin:
                    return OTHERWISE
                keys[row, place] = word << left
                for rest in range(place + 1, most):
                    keys[row, rest] = 0
            elif role == NUMBER:
                value, at, certain = _number(letters, at)
                if not certain:
                    return OTHERWISE
                numbers[row] = value
            else:
                while letters[at] > _SPACE:
                    at += _ONE
                if at == begin:
                    return OTHERWISE
        while _white(letters[at]):
            at += _ONE
        if letters[at] != _NEWLINE:
            return OTHERWISE
        at += _ONE
        row += 1
    return row
