"""Distinct ids in byte order as one array, and dictionary encoding of id columns: millions of ids without millions of objects."""

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from numbers import Integral
from pathlib import Path
from typing import Any, Self, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from moeir.errors import ArtifactError, DataError
from moeir.parsing import clip, preview

ByteStrings: TypeAlias = NDArray[Any]  # bytes of fixed width, or bytes objects where a word is long
MAX_FIXED_BYTES = 64
_ROWS_PER_CHUNK = 2**19  # rows that are copied at a time
_NOT_IN_IDS = re.compile("[\x00-\x1f\x7f-\x9f\ufeff\ud800-\udfff]")  # control characters, byte order marks, halves of characters


def parse_id(value: Any, where: str) -> str:
    """An id as a string, or an error, of readers and writers alike: ids are strings or whole numbers, not empty, without white space."""
    if type(value) is str and value.isascii() and value.isprintable() and value and " " not in value:  # fast, and nearly all
        return value
    if isinstance(value, bool) or not isinstance(value, str | Integral):
        raise DataError(f"{where}: id is not a string: {preview(value)}")
    name = str(value)
    if not name.strip():
        raise DataError(f"{where}: id is blank")
    if name.split() != [name]:
        raise DataError(f"{where}: id with white space: {clip(repr(name))}; expected one word, as in a run")
    if not name.isprintable() and _NOT_IN_IDS.search(name):
        raise DataError(f"{where}: id with a control character: {clip(repr(name))}; expected one word, as in a run")
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
        """The lines of a file such as `ids.txt` of a verified artifact; ArtifactError if it is not UTF-8.

        In an array, ten million ids of 8 bytes take 80 MB; as strings of Python they take ten times that.
        """
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


def merge_ids(lists: Sequence[Sequence[str]]) -> tuple[Sequence[str], list[NDArray[np.int32]]]:
    """The union of ascending id lists, ascending, and for each list the indexes of its ids in the union.

    >>> names, indexes = merge_ids([["a", "c"], ["b", "c"]])
    >>> list(names), [own.tolist() for own in indexes]
    (['a', 'b', 'c'], [[0, 2], [1, 2]])
    """
    if not lists or all(names is lists[0] or names == lists[0] for names in lists):
        return (lists[0] if lists else [], [np.arange(len(names), dtype=np.int32) for names in lists])
    byte_lists = [Ids.from_strings(names).byte_strings for names in lists]
    words = np.concatenate(byte_lists)
    ids, codes = _encode_in_order(words, np.argsort(words, kind="stable"))  # which takes linear time for ascending lists
    return ids, np.split(codes, np.cumsum([len(one) for one in byte_lists])[:-1])


def dictionary_encode(words: ByteStrings) -> tuple[Ids, NDArray[np.int32]]:
    """The distinct byte strings, ascending, and for every row the index of its string among them.

    >>> ids, codes = dictionary_encode(np.array([b"b", b"a", b"b"]))
    >>> list(ids), codes.tolist()
    (['a', 'b'], [1, 0, 1])
    """
    return _encode_in_order(words, _sort_byte_strings(words))


def _sort_byte_strings(words: ByteStrings) -> NDArray[np.int64]:
    """The rows in ascending order; numpy sorts integers of eight bytes several times as fast as strings."""
    if words.dtype == object or not len(words):
        return np.argsort(words, kind="stable")
    width = -(-words.dtype.itemsize // 8) * 8
    columns = words.astype(f"S{width}").view(">u8").reshape(len(words), -1).T
    keys = [column.astype(np.uint64) for column in columns if (column != column[0]).any()]  # ids often share a prefix
    return np.lexsort(keys[::-1]) if len(keys) > 1 else np.argsort(keys[0] if keys else columns[0])


def _encode_in_order(words: ByteStrings, order: NDArray[np.int64]) -> tuple[Ids, NDArray[np.int32]]:
    """`dictionary_encode` of words that are ascending in `order`, in chunks: all words in order would take as much memory as the words."""
    is_new, codes, count = np.ones(len(words), dtype=bool), np.empty(len(words), np.int32), 0
    for first in range(0, len(words), _ROWS_PER_CHUNK):
        rows = slice(first, first + _ROWS_PER_CHUNK)
        in_order = words[order[rows]]
        is_new[rows] = in_order != np.append(words[order[max(first - 1, 0)]], in_order[:-1])
        is_new[0] = True
        codes[order[rows]] = count - 1 + np.cumsum(is_new[rows])
        count += int(is_new[rows].sum())
    return Ids(words[order[is_new]]), codes
