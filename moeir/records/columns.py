"""Columns of a big file whose lines are words between white space, as arrays: millions of lines without millions of objects.

White space is ASCII's, as trec_eval has it; blank lines are skipped.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from moeir.errors import DataError
from moeir.records import lines

Words: TypeAlias = NDArray[Any]  # bytes of fixed width, or bytes objects where a word is long

_WHITE = np.zeros(256, dtype=bool)
_WHITE[list(b" \t\n\r\x0b\x0c")] = True
_WIDEST = 64
_NEWLINE = 10


@dataclass(frozen=True, eq=False)
class Table:
    """The wanted columns [n] of a file, the words of its first line, and where each row stood."""

    columns: list[Words]
    head: list[str]
    name: str
    blanks: list[int]

    def where(self, row: int) -> str:
        """`file:line` of a row.

        >>> Table([], [], "dev.run", [1, 3]).where(1)
        'dev.run:4'
        """
        line = row + 1
        for blank in self.blanks:
            line += blank <= line
        return f"{self.name}:{line}"


def read(path: Path | str, form: str, wanted: tuple[int, ...]) -> Table:
    """The wanted columns of a file whose lines have the columns named in `form`."""
    name, width = lines.label(path), len(form.split())
    parts: list[list[Words]] = [[] for _ in wanted]
    head: list[str] = []
    blanks: list[int] = []
    with lines.blocks(path) as blocks:
        for number, block in blocks:
            letters = np.frombuffer(block + b"\n", dtype=np.uint8)
            words = _words(letters, width)
            if words is None:
                rows = _full_lines(block, number, name, form, blanks)
                if not rows:
                    continue
                letters = np.frombuffer(b"\n".join(rows) + b"\n", dtype=np.uint8)
                words = _words(letters, width)
                assert words is not None
            for part, column in zip(parts, wanted, strict=True):
                part.append(_column(letters, words[0][:, column], words[1][:, column]))
            head = head or [word.decode() for word in block.split(maxsplit=width)[:width]]
    if not head:
        raise DataError(f"{name}: holds no line; {width} columns expected ({form})")
    return Table([np.concatenate(part) for part in parts], head, name, blanks)


def codes(words: Words) -> tuple[list[str], NDArray[np.int64]]:
    """The distinct words, ascending by bytes, and for every row the place of its word among them.

    >>> codes(np.array([b"b", b"a", b"b"]))
    (['a', 'b'], array([1, 0, 1]))
    """
    changes = np.ones(len(words), dtype=bool)
    changes[1:] = words[1:] != words[:-1]  # lines of one query stand together: few heads to sort
    distinct, places = np.unique(words[changes], return_inverse=True)
    return [word.decode() for word in distinct.tolist()], places.astype(np.int64)[np.cumsum(changes) - 1]


def _words(letters: NDArray[np.uint8], width: int) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Where words begin and end, [n, width] each; None unless every line has `width` words."""
    edges = np.flatnonzero(np.diff(_WHITE[letters], prepend=True))  # a begin, an end, a begin, …
    newlines = np.flatnonzero(letters == _NEWLINE)
    if len(edges) != 2 * width * len(newlines):
        return None
    begins, ends = edges[0::2].reshape(-1, width), edges[1::2].reshape(-1, width)
    fits = (ends[:, -1] <= newlines).all() and (begins[1:, 0] > newlines[:-1]).all()
    return (begins, ends) if fits else None


def _full_lines(block: bytes, number: int, name: str, form: str, blanks: list[int]) -> list[bytes]:
    width, kept = len(form.split()), []
    for line, text in enumerate(block.split(b"\n"), number):
        found = len(text.split())
        if found == width:
            kept.append(text)
        elif found:
            raise DataError(f"{name}:{line}: {width} columns expected ({form}), {found} found")
        else:
            blanks.append(line)
    return kept


def _column(letters: NDArray[np.uint8], begins: NDArray[np.int64], ends: NDArray[np.int64]) -> Words:
    sizes = ends - begins
    widest = int(sizes.max())
    if widest > _WIDEST:
        text = letters.tobytes()
        return np.array([text[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)], dtype=object)
    offsets = np.arange(widest)
    places = np.minimum(begins[:, None] + offsets, len(letters) - 1)
    framed = np.where(offsets < sizes[:, None], letters[places], np.uint8(0))  # [n, widest]
    return framed.view(f"S{widest}").reshape(-1)
