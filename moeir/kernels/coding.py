"""Keys as places among the distinct ones: what a column of ids is coded with.

A key is a row of uint64; words that stand in them big-endian ascend as their bytes do.
"""

from typing import Any

import numpy as np

from moeir.kernels.compiling import compiled

_BYTE, _PAIR = np.uint64(255), np.uint64(65535)
_VALUES = 2048  # of a digit
_DIGIT = 11  # bits of one


@compiled()
def take(keys: Any, first: int, held: Any, rows: Any, count: int) -> int:
    """Add to held [most, m], after `count` that it has, the keys [n, m] unlike the one before; how many it has then.

    rows [most]: which rows those are, the first of `keys` being row `first`.
    """
    for row in range(len(keys)):
        new = count == 0
        for place in range(keys.shape[1]):
            new |= count > 0 and held[count - 1, place] != keys[row, place]
        if new:
            for place in range(keys.shape[1]):
                held[count, place] = keys[row, place]
            rows[count] = first + row
            count += 1
    return count


@compiled()
def seen(keys: Any, pairs: Any) -> None:
    """Mark in pairs [4 · m, 65536] which values each two bytes of keys [n, m] have, the last two of a number first."""
    for row in range(len(keys)):
        for place in range(keys.shape[1]):
            key = keys[row, place]
            for pair in range(4):
                pairs[4 * place + pair, np.int64(key >> np.uint64(16 * pair) & _PAIR)] = True


@compiled()
def pack(keys: Any, tables: Any, packed: Any) -> None:
    """Numbers [n] that ascend as keys [n, m] do, their rows below them; tables [4 · m, 65536]: what each two bytes add."""
    for row in range(len(keys)):
        number = np.uint64(row)
        for place in range(keys.shape[1]):
            key = keys[row, place]
            for pair in range(4):
                number |= tables[4 * place + pair, np.int64(key >> np.uint64(16 * pair) & _PAIR)]
        packed[row] = number


@compiled()
def in_order(packed: Any, spare: Any, first: int, last: int) -> tuple[Any, Any]:
    """The numbers [n] by their bits from `first` to `last`, in one of two arrays, and the other: a radix sort from the lowest digit up."""
    passes = max(-(-(last - first) // _DIGIT), 1)
    size = max(-(-(last - first) // passes), 1)
    mask = np.uint64((1 << size) - 1)
    for begin in range(first, last, size):
        heads, shift = np.zeros((1 << size) + 1, np.int64), np.uint64(begin)
        for row in range(len(packed)):
            heads[np.int64(packed[row] >> shift & mask) + 1] += 1
        heads = np.cumsum(heads)
        for row in range(len(packed)):
            digit = np.int64(packed[row] >> shift & mask)
            spare[heads[digit]] = packed[row]
            heads[digit] += 1
        packed, spare = spare, packed
    return packed, spare


@compiled()
def unpack(packed: Any, first: int, shifts: Any, masks: Any, values: Any, keys: Any, places: Any) -> int:
    """Write to places [n] where each row's key stands among the distinct ones, and those to keys [n, m]; how many they are.

    packed [n] ascends, rows below bit `first`; shifts, masks [4 · m] and values [4 · m, most]: the bits of two bytes, and what they say.
    """
    last, before = -1, np.uint64(0)
    rows = np.uint64((1 << first) - 1)
    for one in range(len(packed)):
        number = packed[one] >> np.uint64(first)
        if last < 0 or number != before:
            last, before = last + 1, number
            for place in range(keys.shape[1]):
                key = np.uint64(0)
                for pair in range(4):
                    at = 4 * place + pair
                    key |= values[at, np.int64(packed[one] >> shifts[at] & masks[at])]
                keys[last, place] = key
        places[np.int64(packed[one] & rows)] = last
    return last + 1


@compiled()
def _digit(counts: Any, byte: int, tables: Any, shifts: Any) -> tuple[int, int]:
    """A digit of up to three bytes from `byte` up that take few enough values together; the byte after them, and how many values.

    counts [8, 256]: how often a byte has a value; tables [3, 256], shifts [3]: what each byte's value adds to the digit.
    """
    size, held = 1, 0
    tables[:], shifts[:] = 0, 0
    while byte < 8 and held < 3:
        used = 0
        for value in range(256):
            used += counts[byte, value] > 0
        if held and size * used > _VALUES:
            break
        rank = 0
        for value in range(256):
            if counts[byte, value] > 0:
                tables[held, value] = rank * size
                rank += 1
        shifts[held] = 8 * byte
        size, held, byte = size * used, held + 1, byte + 1
    return byte, size


@compiled()
def ascending(keys: Any, spare: Any, order: Any, other: Any) -> tuple[Any, Any]:
    """The keys [n, m] in order and where each stood [n], in one of two arrays each: a radix sort from the last byte to the first.

    order [n]: 0, 1, 2, …; the values that bytes do not take are not counted, so that ten figures are ten values.
    """
    count, width = keys.shape
    tables, shifts = np.empty((3, 256), np.int64), np.empty(3, np.uint64)
    for place in range(width - 1, -1, -1):
        counts = np.zeros((8, 256), np.int64)
        for row in range(count):
            key = keys[row, place]
            for byte in range(8):
                counts[byte, np.int64(key >> np.uint64(8 * byte) & _BYTE)] += 1
        byte = 0
        while byte < 8:
            byte, size = _digit(counts, byte, tables, shifts)
            if size < 2:
                continue
            low, middle, high = tables[0], tables[1], tables[2]
            heads = np.zeros(size + 1, np.int64)
            for row in range(count):
                key = keys[row, place]
                digit = low[key >> shifts[0] & _BYTE] + middle[key >> shifts[1] & _BYTE] + high[key >> shifts[2] & _BYTE]
                heads[digit + 1] += 1
            heads = np.cumsum(heads)
            for row in range(count):
                key = keys[row, place]
                digit = low[key >> shifts[0] & _BYTE] + middle[key >> shifts[1] & _BYTE] + high[key >> shifts[2] & _BYTE]
                to = heads[digit]
                heads[digit] = to + 1
                for column in range(width):
                    spare[to, column] = keys[row, column]
                other[to] = order[row]
            keys, spare, order, other = spare, keys, other, order
    return keys, order


@compiled()
def number(keys: Any, order: Any, places: Any) -> int:
    """Write to places [n] where each key stands among the distinct ones, which move to the front of keys [n, m]; how many they are."""
    last = -1
    for row in range(len(keys)):
        new = last < 0
        for place in range(keys.shape[1]):
            new |= last >= 0 and keys[last, place] != keys[row, place]
        if new:
            last += 1
            for place in range(keys.shape[1]):
                keys[last, place] = keys[row, place]
        places[order[row]] = last
    return last + 1


@compiled()
def merge(first: Any, second: Any, united: Any, places: Any, others: Any) -> int:
    """Two ascending lists of distinct keys as one [n, m], each key once; where their own stand in it; how many there are.

    Here the keys are the bytes as they lie in memory, the lowest first.
    """
    at, other, count, width = 0, 0, 0, united.shape[1]
    while at < len(first) or other < len(second):
        order = 0
        if at == len(first):
            order = 1
        elif other == len(second):
            order = -1
        else:
            for place in range(width):
                left, right = _swapped(first[at, place]), _swapped(second[other, place])
                if left != right:
                    order = -1 if left < right else 1
                    break
        for place in range(width):
            united[count, place] = first[at, place] if order <= 0 else second[other, place]
        if order <= 0:
            places[at] = count
            at += 1
        if order >= 0:
            others[other] = count
            other += 1
        count += 1
    return count


@compiled()
def _swapped(number: Any) -> Any:
    """The eight bytes in the other order."""
    number = (number & np.uint64(0x00FF00FF00FF00FF)) << np.uint64(8) | (number >> np.uint64(8)) & np.uint64(0x00FF00FF00FF00FF)
    number = (number & np.uint64(0x0000FFFF0000FFFF)) << np.uint64(16) | (number >> np.uint64(16)) & np.uint64(0x0000FFFF0000FFFF)
    return number << np.uint64(32) | number >> np.uint64(32)
