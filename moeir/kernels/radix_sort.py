"""Radix sort of string keys to their ranks among the distinct keys: the integer codes of a column of ids.

A key is a row of uint64; strings stored in them big-endian sort as their bytes do.
"""

from typing import Any

import numpy as np

from moeir.kernels.numba_cache import njit_cached

_BYTE_MASK, _PAIR_MASK = np.uint64(255), np.uint64(65535)
_MAX_DIGIT_VALUES = 2048  # most values of a digit
_DIGIT_BITS = 11  # most bits of a digit


@njit_cached()
def append_changed(keys: Any, first: int, distinct: Any, rows: Any, count: int) -> int:
    """Append to distinct [most, m], which holds `count` keys, the keys [n, m] that differ from the one before; return the new count.

    rows [most]: the row of each appended key; the first of `keys` is row `first`.
    """
    for row in range(len(keys)):
        new = count == 0
        for column in range(keys.shape[1]):
            new |= count > 0 and distinct[count - 1, column] != keys[row, column]
        if new:
            for column in range(keys.shape[1]):
                distinct[count, column] = keys[row, column]
            rows[count] = first + row
            count += 1
    return count


@njit_cached()
def mark_used_values(keys: Any, pairs: Any) -> None:
    """Mark in pairs [4 · m, 65536] which values each byte pair of keys [n, m] takes, the lowest pair of a number first."""
    for row in range(len(keys)):
        for column in range(keys.shape[1]):
            key = keys[row, column]
            for pair in range(4):
                pairs[4 * column + pair, np.int64(key >> np.uint64(16 * pair) & _PAIR_MASK)] = True


@njit_cached()
def pack_keys(keys: Any, tables: Any, packed: Any) -> None:
    """Write to packed [n] numbers that sort as keys [n, m] do, with the row in the low bits; tables [4 · m, 65536]: bits of byte pairs."""
    for row in range(len(keys)):
        number = np.uint64(row)
        for column in range(keys.shape[1]):
            key = keys[row, column]
            for pair in range(4):
                number |= tables[4 * column + pair, np.int64(key >> np.uint64(16 * pair) & _PAIR_MASK)]
        packed[row] = number


@njit_cached()
def radix_sort_bits(packed: Any, spare: Any, first: int, last: int) -> tuple[Any, Any]:
    """Radix sort of numbers [n] by their bits from `first` to `last`, lowest digit first: the sorted one of two arrays, and the other."""
    passes = max(-(-(last - first) // _DIGIT_BITS), 1)
    size = max(-(-(last - first) // passes), 1)
    mask = np.uint64((1 << size) - 1)
    for begin in range(first, last, size):
        offsets, shift = np.zeros((1 << size) + 1, np.int64), np.uint64(begin)
        for row in range(len(packed)):
            offsets[np.int64(packed[row] >> shift & mask) + 1] += 1
        offsets = np.cumsum(offsets)
        for row in range(len(packed)):
            digit = np.int64(packed[row] >> shift & mask)
            spare[offsets[digit]] = packed[row]
            offsets[digit] += 1
        packed, spare = spare, packed
    return packed, spare


@njit_cached()
def unpack_keys(packed: Any, first: int, shifts: Any, masks: Any, values: Any, keys: Any, ranks: Any) -> int:
    """Write to ranks [n] each row's rank among the distinct keys, and the distinct keys to keys [n, m]; return how many.

    packed [n] ascends, rows below bit `first`; shifts, masks [4 · m] and values [4 · m, most]: the bits of each byte pair, and their value.
    """
    rank, previous = -1, np.uint64(0)
    rows = np.uint64((1 << first) - 1)
    for index in range(len(packed)):
        code = packed[index] >> np.uint64(first)
        if rank < 0 or code != previous:
            rank, previous = rank + 1, code
            for column in range(keys.shape[1]):
                key = np.uint64(0)
                for pair in range(4):
                    table = 4 * column + pair
                    key |= values[table, np.int64(packed[index] >> shifts[table] & masks[table])]
                keys[rank, column] = key
        ranks[np.int64(packed[index] & rows)] = rank
    return rank + 1


@njit_cached()
def _choose_digit(counts: Any, byte: int, tables: Any, shifts: Any) -> tuple[int, int]:
    """Choose a digit of up to three bytes from `byte` up with few enough values; return the byte after them, and the number of values.

    counts [8, 256]: how often a byte has a value; tables [3, 256], shifts [3]: what each byte's value adds to the digit.
    """
    size, byte_count = 1, 0
    tables[:], shifts[:] = 0, 0
    while byte < 8 and byte_count < 3:
        used = 0
        for value in range(256):
            used += counts[byte, value] > 0
        if byte_count and size * used > _MAX_DIGIT_VALUES:
            break
        rank = 0
        for value in range(256):
            if counts[byte, value] > 0:
                tables[byte_count, value] = rank * size
                rank += 1
        shifts[byte_count] = 8 * byte
        size, byte_count, byte = size * used, byte_count + 1, byte + 1
    return byte, size


@njit_cached()
def radix_sort_bytes(keys: Any, spare: Any, order: Any, spare_order: Any) -> tuple[Any, Any]:
    """Radix sort of keys [n, m] from the last byte to the first: the sorted keys and their old rows [n], in one of two arrays each.

    order [n]: 0, 1, 2, …; values that a byte never takes do not count, so that ten digits are ten values.
    """
    count, width = keys.shape
    tables, shifts = np.empty((3, 256), np.int64), np.empty(3, np.uint64)
    for word in range(width - 1, -1, -1):
        counts = np.zeros((8, 256), np.int64)
        for row in range(count):
            key = keys[row, word]
            for byte in range(8):
                counts[byte, np.int64(key >> np.uint64(8 * byte) & _BYTE_MASK)] += 1
        byte = 0
        while byte < 8:
            byte, size = _choose_digit(counts, byte, tables, shifts)
            if size < 2:
                continue
            low, middle, high = tables[0], tables[1], tables[2]
            offsets = np.zeros(size + 1, np.int64)
            for row in range(count):
                key = keys[row, word]
                digit = low[key >> shifts[0] & _BYTE_MASK] + middle[key >> shifts[1] & _BYTE_MASK] + high[key >> shifts[2] & _BYTE_MASK]
                offsets[digit + 1] += 1
            offsets = np.cumsum(offsets)
            for row in range(count):
                key = keys[row, word]
                digit = low[key >> shifts[0] & _BYTE_MASK] + middle[key >> shifts[1] & _BYTE_MASK] + high[key >> shifts[2] & _BYTE_MASK]
                target = offsets[digit]
                offsets[digit] = target + 1
                for column in range(width):
                    spare[target, column] = keys[row, column]
                spare_order[target] = order[row]
            keys, spare, order, spare_order = spare, keys, spare_order, order
    return keys, order


@njit_cached()
def rank_keys(keys: Any, order: Any, ranks: Any) -> int:
    """Write to ranks [n] the rank of each key among the distinct ones, which move to the front of keys [n, m]; return how many."""
    rank = -1
    for row in range(len(keys)):
        new = rank < 0
        for column in range(keys.shape[1]):
            new |= rank >= 0 and keys[rank, column] != keys[row, column]
        if new:
            rank += 1
            for column in range(keys.shape[1]):
                keys[rank, column] = keys[row, column]
        ranks[order[row]] = rank
    return rank + 1


@njit_cached()
def merge_keys(first: Any, second: Any, union: Any, first_ranks: Any, second_ranks: Any) -> int:
    """Merge two ascending lists of distinct keys into union [n, m], with each list's ranks in it; return the number of keys.

    Here the keys are bytes in memory order, lowest address first.
    """
    first_row, second_row, count, width = 0, 0, 0, union.shape[1]
    while first_row < len(first) or second_row < len(second):
        order = 0
        if first_row == len(first):
            order = 1
        elif second_row == len(second):
            order = -1
        else:
            for column in range(width):
                left, right = _swap_bytes(first[first_row, column]), _swap_bytes(second[second_row, column])
                if left != right:
                    order = -1 if left < right else 1
                    break
        for column in range(width):
            union[count, column] = first[first_row, column] if order <= 0 else second[second_row, column]
        if order <= 0:
            first_ranks[first_row] = count
            first_row += 1
        if order >= 0:
            second_ranks[second_row] = count
            second_row += 1
        count += 1
    return count


@njit_cached()
def _swap_bytes(word: Any) -> Any:
    """Reverse the order of the eight bytes."""
    word = (word & np.uint64(0x00FF00FF00FF00FF)) << np.uint64(8) | (word >> np.uint64(8)) & np.uint64(0x00FF00FF00FF00FF)
    word = (word & np.uint64(0x0000FFFF0000FFFF)) << np.uint64(16) | (word >> np.uint64(16)) & np.uint64(0x0000FFFF0000FFFF)
    return word << np.uint64(32) | word >> np.uint64(32)
