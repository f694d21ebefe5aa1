"""Distinct ids in byte order as one array, and dictionary encoding of id columns: millions of ids without millions of objects.

A column of strings is coded as integers; rows are buffered where they differ from the row before, and sorted once.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from numbers import Integral
from pathlib import Path
from typing import Any, Self, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from moeir.errors import ArtifactError, DataError
from moeir.parsing import clip, preview
from moeir.records import compiled_loops

ByteStrings: TypeAlias = NDArray[Any]  # bytes of fixed width, or bytes objects where a word is long
MAX_FIXED_BYTES = 64
_ROWS_PER_CHUNK = 2**19  # rows that are buffered before they are encoded
_NOT_IN_IDS = re.compile("[\x00-\x1f\x7f-\x9f\ufeff\ud800-\udfff]")  # control characters, byte order marks, halves of characters


def parse_id(value: Any, where: str) -> str:
    """An id as a string, or an error, of readers and writers alike: ids are strings or whole numbers, not empty, without white space."""
    if type(value) is str and value.isascii() and value.isprintable() and value and " " not in value:  # fast, and nearly all
        return value
    if isinstance(value, bool) or not isinstance(value, str | Integral):
        raise DataError(f"{where}: id is not a string: {preview(value)}", code="id-not-a-word")
    name = str(value)
    if not name.strip():
        raise DataError(f"{where}: id is blank", code="blank-id")
    if name.split() != [name]:
        raise DataError(f"{where}: id with white space: {clip(repr(name))}; expected one word, as in a run", code="id-with-space")
    if not name.isprintable() and _NOT_IN_IDS.search(name):
        raise DataError(f"{where}: id with a control character: {clip(repr(name))}; expected one word, as in a run", code="id-not-a-word")
    return name


def as_byte_strings(words: list[bytes]) -> ByteStrings:
    """The words as an array."""
    return np.array(words, dtype=np.bytes_ if max(map(len, words), default=0) <= MAX_FIXED_BYTES else object)


def _check_utf_8(words: list[bytes], path: Path) -> list[bytes]:
    try:
        b"\n".join(words).decode()
    except UnicodeDecodeError:
        raise ArtifactError(f"{path}: damaged: ids that are not UTF-8; run the stage that made it again with --force") from None
    return words


class IdColumn(Sequence[str]):
    """An immutable sequence of ids in any order; `byte_strings` [N] are their UTF-8 bytes."""

    def __init__(self, words: ByteStrings) -> None:
        self.byte_strings = words

    @classmethod
    def read(cls, path: Path) -> Self:
        """The lines of a file such as `ids.txt`; ArtifactError if it is missing or not UTF-8.

        In an array, ten million ids of 8 bytes take 80 MB; as strings of Python they take ten times that.
        """
        if not path.is_file():
            raise ArtifactError(f"{path}: the file is missing from its artifact")
        with open(path, "rb") as file:
            parts = iter(lambda: [line.rstrip(b"\n") for line in islice(file, _ROWS_PER_CHUNK)], [])
            return cls(np.concatenate([as_byte_strings([]), *(as_byte_strings(_check_utf_8(part, path)) for part in parts)]))

    @classmethod
    def concatenate(cls, columns: Sequence["IdColumn"]) -> Self:
        """The ids of several columns, one after the other."""
        return cls(np.concatenate([column.byte_strings for column in columns]))

    def select(self, rows: NDArray[np.int64]) -> "IdColumn":
        """The ids of some rows [n]."""
        return IdColumn(self.byte_strings[rows])

    def __len__(self) -> int:
        return len(self.byte_strings)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: int | slice) -> str | Self:
        if isinstance(index, slice):
            return type(self)(self.byte_strings[index])
        word: bytes = self.byte_strings[index]
        return word.decode()

    def __iter__(self) -> Iterator[str]:
        return (word.decode() for word in self.byte_strings.tolist())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, IdColumn):
            return len(self) == len(other) and bool((self.byte_strings == other.byte_strings).all())
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(str.__eq__, self, other))

    __hash__ = None  # type: ignore[assignment]


class Ids(IdColumn):
    """Distinct ids, ascending by bytes."""

    @classmethod
    def from_strings(cls, ids: Sequence[str]) -> "Ids":
        """Ids from strings that are ascending and distinct.

        >>> Ids.from_strings(["a", "b"])[1]
        'b'
        """
        if isinstance(ids, Ids):
            return ids
        return cls(as_byte_strings([one.encode() for one in ids]))

    def lookup(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """Index of each id [n]; -1 for an unknown one.

        >>> Ids.from_strings(["a", "c"]).lookup(["c", "b", "a"]).tolist()
        [1, -1, 0]
        """
        if not len(self) or not len(ids):
            return np.full(len(ids), -1, np.int64)
        targets = np.array([one.encode() for one in ids], dtype=object if self.byte_strings.dtype == object else np.bytes_)
        rows = np.minimum(np.searchsorted(self.byte_strings, targets), len(self) - 1)
        return np.where(self.byte_strings[rows] == targets, rows, -1)

    def __repr__(self) -> str:
        return f"Ids({list(self)!r})" if len(self) < 9 else f"<{len(self):,} ids from {self[0]!r} to {self[-1]!r}>"


def merge_vocabularies(lists: Sequence[Sequence[str]]) -> tuple[Sequence[str], list[NDArray[np.int32]]]:
    """The union of ascending id lists, ascending, and for each list the indexes of its ids in the union.

    >>> names, places = merge_vocabularies([["a", "c"], ["b", "c"]])
    >>> list(names), [own.tolist() for own in places]
    (['a', 'b', 'c'], [[0, 2], [1, 2]])
    """
    if not lists or all(names is lists[0] or names == lists[0] for names in lists):
        return (lists[0] if lists else [], [np.arange(len(names), dtype=np.int32) for names in lists])
    byte_lists = [Ids.from_strings(names).byte_strings for names in lists]
    if any(words.dtype == object for words in byte_lists):
        byte_lists = [words.astype(object) for words in byte_lists]
    elif compiled := compiled_loops.load_for_rows(sum(map(len, byte_lists))):
        return _merge_compiled(compiled.radix_sort, byte_lists)
    names, codes = dictionary_encode(np.concatenate(byte_lists))
    return names, np.split(codes, np.cumsum([len(words) for words in byte_lists])[:-1])


def dictionary_encode(words: ByteStrings) -> tuple[Ids, NDArray[np.int32]]:
    """The distinct byte strings, ascending, and for every row the index of its string among them.

    >>> names, places = dictionary_encode(np.array([b"b", b"a", b"b"]))
    >>> list(names), places.tolist()
    (['a', 'b'], [1, 0, 1])
    """
    numbers = _as_uint64(words)
    changes = _row_changes(numbers)  # lines of one query are adjacent: few heads to sort
    all_differ = bool(changes.all())
    heads = numbers if all_differ else numbers[changes]
    if heads.shape[1] == 1:
        order = np.argsort(heads[:, 0]).astype(np.int32)
        heads.sort(axis=0)  # in place, without a copy
    else:
        order = np.lexsort(heads.T[::-1]).astype(np.int32)
        heads = heads[order]
    is_new = _row_changes(heads)
    del numbers, heads  # the largest arrays here
    codes = np.empty(len(order), np.int32)
    codes[order] = np.cumsum(is_new, dtype=np.int32) - 1
    vocabulary = (words if all_differ else words[changes])[order[is_new]]
    return Ids(vocabulary), codes if all_differ else codes[np.cumsum(changes, dtype=np.int32) - 1]


def _merge_compiled(coding: Any, byte_lists: list[ByteStrings]) -> tuple[Ids, list[NDArray[np.int32]]]:
    """`merge_vocabularies` for strings of fixed width, by compiled loops: ascending lists need no sorting."""
    width = max(-(-words.dtype.itemsize // 8) for words in byte_lists)
    numbers = [np.ascontiguousarray(words.astype(f"S{8 * width}", copy=False)).view(np.uint64).reshape(-1, width) for words in byte_lists]
    names, codes = numbers[0], [np.arange(len(numbers[0]), dtype=np.int32)]
    for others in numbers[1:]:
        union = np.empty((len(names) + len(others), width), np.uint64)  # pages never written take no memory
        old_codes, new_codes = np.empty(len(names), np.int32), np.empty(len(others), np.int32)
        names = union[: coding.merge_keys(names, others, union, old_codes, new_codes)]
        codes = [*(old_codes[list_codes] for list_codes in codes), new_codes]
    return Ids(names.view(f"S{8 * width}").reshape(-1)), codes


class DictionaryEncoder:
    """Dictionary encoding of a column that arrives in parts: each row becomes an index into the distinct strings.

    With `compiled`, the loops of `radix_sort`, strings of up to MAX_FIXED_BYTES bytes are buffered as integers.
    """

    def __init__(self, compiled: Any = None) -> None:
        self._parts: list[ByteStrings] = []
        self._rows = 0
        self._encoded_chunks: list[tuple[Ids, NDArray[np.int32]]] = []
        self._compiled = compiled
        self._sorter: KeySorter | None = None

    def add(self, words: ByteStrings) -> None:
        """Add the strings of the next rows, or the integers [n, m] that `_as_uint64` makes of them."""
        if self._compiled is not None and words.dtype != object:
            self._add_keys(words if words.dtype == np.uint64 else _as_uint64(words))
            return
        self._flush_sorter()
        self._parts.append(words)
        self._rows += len(words)
        if self._rows >= _ROWS_PER_CHUNK:
            self._encode_parts()

    def finish(self) -> tuple[Ids, NDArray[np.int32]]:
        """The `dictionary_encode` result of all rows together.

        >>> coding = DictionaryEncoder()
        >>> coding.add(np.array([b"b", b"a"])), coding.add(np.array([b"b", b"longer"]))
        (None, None)
        >>> names, places = coding.finish()
        >>> list(names), places.tolist()
        (['a', 'b', 'longer'], [1, 0, 1, 2])
        """
        self._flush_sorter()
        if self._parts or not self._encoded_chunks:
            self._encode_parts()
        if len(self._encoded_chunks) == 1:
            return self._encoded_chunks[0]
        names, mappings = merge_vocabularies([list_codes for list_codes, _ in self._encoded_chunks])
        for mapping, (_, list_codes) in zip(mappings, self._encoded_chunks, strict=True):
            np.take(mapping, list_codes, mode="clip", out=list_codes)  # in place: the parts together are as long as the file
        return Ids.from_strings(names), np.concatenate([list_codes for _, list_codes in self._encoded_chunks])

    def _add_keys(self, numbers: NDArray[np.uint64]) -> None:
        if self._parts:
            self._encode_parts()
        width = numbers.shape[1]
        if self._sorter is not None and self._sorter.width >= width and self._sorter.add(numbers):
            return
        width = max(width, 0 if self._sorter is None else self._sorter.width)
        self._flush_sorter()
        self._sorter = KeySorter(self._compiled, width)
        self._sorter.add(numbers)

    def _flush_sorter(self) -> None:
        if self._sorter is not None:
            numbers, codes = self._sorter.finish()
            if sys.byteorder == "little":
                numbers.byteswap(inplace=True)
            self._encoded_chunks.append((Ids(numbers.view(f"S{8 * numbers.shape[1]}").reshape(-1)), codes))
            self._sorter = None

    def _encode_parts(self) -> None:
        words = np.concatenate(self._parts) if self._parts else np.empty(0, "S1")
        self._parts, self._rows = [], 0
        self._encoded_chunks.append(dictionary_encode(words))


def _as_uint64(words: ByteStrings) -> NDArray[Any]:
    """Byte strings as rows of integers [n, m] with the same order, eight bytes per integer."""
    if words.dtype == object:
        return words[:, None].copy()
    whole = -(-words.dtype.itemsize // 8) * 8
    numbers = words.astype(f"S{whole}").view(np.uint64)
    if sys.byteorder == "little":
        numbers.byteswap(inplace=True)
    return numbers.reshape(len(words), -1)


def _row_changes(rows: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether a row of integers [n, m] differs from the row before it; true for the first."""
    unlike = np.ones(len(rows), dtype=bool)
    np.not_equal(rows[1:, 0], rows[:-1, 0], out=unlike[1:], casting="unsafe")
    for column in rows.T[1:]:
        unlike[1:] |= column[1:] != column[:-1]
    return unlike


Keys: TypeAlias = NDArray[np.uint64]  # [n, m]: strings as rows of integers with the same order, eight bytes per integer
MAX_KEYS = 2**23  # integers that are buffered before they are sorted


class KeySorter:
    """Buffer of one column's keys, `width` integers each; `loops` are those of `radix_sort`."""

    def __init__(self, loops: Any, width: int) -> None:
        self.width = width
        self._compiled = loops
        self._keys: Keys = np.empty((max(MAX_KEYS // width, 1), width), np.uint64)  # pages never written take no memory
        self._rows: NDArray[np.int32] | None = np.empty(len(self._keys), np.int32)
        self._key_count = 0
        self._row_count = 0

    def add(self, keys: Keys) -> bool:
        """Add the next rows; False if the buffer has no room for them."""
        if self._key_count + len(keys) > len(self._keys):
            if self._row_count:
                return False
            self._keys, self._rows = np.empty((len(keys), self.width), np.uint64), np.empty(len(keys), np.int32)
        if keys.shape[1] < self.width:
            keys = np.pad(keys, ((0, 0), (0, self.width - keys.shape[1])))
        if self._rows is None:
            self._keys[self._key_count : self._key_count + len(keys)] = keys
            self._key_count += len(keys)
        else:
            keys = np.ascontiguousarray(keys)
            self._key_count = self._compiled.append_changed(keys, self._row_count, self._keys, self._rows, self._key_count)
        self._row_count += len(keys)
        if self._key_count == self._row_count:
            self._rows = None  # most likely all later rows differ too
        return True

    def finish(self) -> tuple[Keys, NDArray[np.int32]]:
        """The distinct keys, ascending, and for every row the index of its key among them; empties the buffer."""
        unsorted, count = self._keys[: self._key_count], self._key_count
        lengths = None if self._rows is None else np.diff(self._rows[:count], append=np.int32(self._row_count))
        self._keys, self._rows = np.empty((0, self.width), np.uint64), None
        pairs = np.zeros((4 * self.width, 2**16), bool)
        self._compiled.mark_used_values(unsorted, pairs)
        order = np.arange(4 * self.width).reshape(-1, 4)[::-1].reshape(-1)  # one digit per two bytes, the last ones first
        sizes = np.array([int(many - 1).bit_length() for many in pairs.sum(axis=1).tolist()])
        first = max(count - 1, 1).bit_length()
        ends = first + np.cumsum(sizes[order])
        shifts = np.empty(len(order), np.int64)
        shifts[order] = ends - sizes[order]
        if ends[-1] > 64:
            keys, codes = _sort_by_bytes(self._compiled, unsorted)
        else:
            keys, codes = _sort_packed(self._compiled, unsorted, pairs, shifts, sizes, first, int(ends[-1]))
        return keys, codes if lengths is None else np.repeat(codes, lengths)


def _sort_packed(
    loops: Any, unsorted: Keys, pairs: NDArray[np.bool_], shifts: NDArray[np.int64], sizes: NDArray[np.int64], first: int, last: int
) -> tuple[Keys, NDArray[np.int32]]:
    """Sort keys whose distinct bytes fit into one integer with the row below them: one integer per row is sorted."""
    shifts = np.minimum(shifts, 63).astype(np.uint64)  # a digit without bits may start at 64
    tables = np.cumsum(pairs, axis=1, dtype=np.uint64) - np.uint64(1) << shifts[:, None]
    tables[~pairs] = 0
    packed = np.empty(len(unsorted), np.uint64) if unsorted.shape[1] > 1 else unsorted.reshape(-1)
    loops.pack_keys(unsorted, tables, packed)
    count, width = unsorted.shape
    del unsorted
    packed, spare = loops.radix_sort_bits(packed, np.empty_like(packed), first, last)
    values = np.zeros((len(pairs), int(pairs.sum(axis=1).max())), np.uint64)
    for pair, letters in enumerate(pairs):
        used = np.flatnonzero(letters).astype(np.uint64)
        values[pair, : len(used)] = used << np.uint64(16 * (pair % 4))
    masks = (np.uint64(1) << sizes.astype(np.uint64)) - np.uint64(1)
    keys, codes = np.empty((count, width), np.uint64) if width > 1 else spare.reshape(-1, 1), np.empty(count, np.int32)
    distinct = loops.unpack_keys(packed, first, shifts, masks, values, keys, codes)
    return keys[:distinct].copy(), codes


def _sort_by_bytes(loops: Any, unsorted: Keys) -> tuple[Keys, NDArray[np.int32]]:
    rows = np.arange(len(unsorted), dtype=np.int32)
    keys, order = loops.radix_sort_bytes(unsorted, np.empty_like(unsorted), rows, np.empty_like(rows))
    del unsorted, rows  # the largest arrays here
    codes = np.empty(len(order), np.int32)
    return keys[: loops.rank_keys(keys, order, codes)].copy(), codes
