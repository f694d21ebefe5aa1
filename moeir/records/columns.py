"""Columns of white-space separated files, such as TREC runs, as arrays: millions of lines without millions of Python objects.

White space is ASCII white space, as in trec_eval; blank lines are skipped. Regular blocks are parsed by Arrow, or by compiled loops in a
big file; all others in Python, with the same result and with the line number of every fault.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from pyarrow import csv

from moeir.errors import DataError
from moeir.kernels import memory
from moeir.records import lines, loops
from moeir.records.cutter import Cutter, Numbers, joined
from moeir.records.ids import WIDEST, Coding, Ids, Words

_library: Any = pyarrow  # has no type hints
_csv: Any = csv

_WHITE = np.zeros(256, dtype=bool)
_WHITE[list(b" \t\n\r\x0b\x0c")] = True
_NEWLINE = 10


@dataclass(frozen=True, eq=False)
class Table:
    """The columns [n] that were read from a file, the words of its first line, and the line number of each row.

    A column of strings is its distinct strings and each row's index among them.
    """

    words: list[tuple[Ids, NDArray[np.int32]]]
    numbers: Numbers
    head: list[str]
    name: str
    blanks: list[int]

    def where(self, row: int) -> str:
        """`file:line` of a row.

        >>> Table([], np.zeros(0, np.float32), [], "dev.run", [1, 3]).where(1)
        'dev.run:4'
        """
        line = row + 1
        for blank in self.blanks:
            line += blank <= line
        return f"{self.name}:{line}"


def read(path: Path | str, form: str, wanted: tuple[int, ...], number: int) -> Table:
    """Read some columns of a file whose columns are named in `form`; column `number` holds finite float32 numbers."""
    name, width = lines.label(path), len(form.split())
    compiled = loops.of_file(path)
    encoders, parts = [Coding(compiled and compiled.coding) for _ in wanted], list[Numbers]()
    reader = compiled and Cutter(compiled.cutting, width, wanted, number)
    first_words: list[str] = []
    blanks: list[int] = []
    with lines.blocks(path) as blocks:
        for first, block in blocks:
            columns = reader and reader.columns(block)
            columns = columns or _by_arrow(block, width, wanted, number) or _by_hand(block, first, name, form, blanks, wanted, number)
            if columns:
                for encoder, column in zip(encoders, columns[:-1], strict=True):
                    encoder.add(column)
                parts.append(columns[-1])
                first_words = first_words or [word.decode() for word in block.split(maxsplit=width)[:width]]
    if not first_words:
        raise DataError(f"{name}: holds no line; expected {width} columns ({form})")
    strings = [encoder.finished() for encoder in reversed(encoders)][::-1]  # documents first: they take the most memory
    table = Table(strings, joined(parts), first_words, name, blanks)
    give_back(len(table.numbers))
    return table


def give_back(rows: int) -> None:
    """Return freed memory to the system after reading many rows: it is fragmented, and later arrays do not fit into it."""
    if rows < 2**20:
        return
    _library.default_memory_pool().release_unused()
    memory.give_back()


def _by_arrow(block: bytes, width: int, wanted: tuple[int, ...], number: int) -> list[NDArray[Any]] | None:
    """The columns of a regular block, with one separator between words; None for any other block."""
    space = b"\t" if b"\t" in block else b" "
    if any(letter in block for letter in (b"\r", b"\x0b", b"\x0c", *([b" "] if space == b"\t" else []))):
        return None
    characters = np.frombuffer(block, np.uint8)
    is_separator = (characters == space[0]) | (characters == _NEWLINE)
    if not len(characters) or is_separator[0] or is_separator[-1] or (is_separator[1:] & is_separator[:-1]).any():
        return None
    names = [str(column) for column in range(width)]
    types = {str(column): _library.string() for column in wanted} | {str(number): _library.float64()}
    try:
        table = _csv.read_csv(
            _library.BufferReader(block),
            _csv.ReadOptions(column_names=names, block_size=len(block) + 1, use_threads=False),
            _csv.ParseOptions(delimiter=space.decode(), quote_char=False, escape_char=False),
            _csv.ConvertOptions(include_columns=list(types), column_types=types, null_values=[], check_utf8=False),
        )
    except _library.ArrowInvalid:
        return None
    with np.errstate(over="ignore"):
        numbers = table.column(str(number)).chunk(0).to_numpy().astype(np.float32)
    if not np.isfinite(numbers).all():
        return None
    return [*(_arrow_words(table.column(str(column)).chunk(0)) for column in wanted), numbers]


def _arrow_words(column: Any) -> Words:
    _, offsets, characters = column.buffers()
    edges = np.frombuffer(offsets, np.int32, len(column) + 1).astype(np.int64)
    return _column(np.frombuffer(characters, np.uint8), edges[:-1], edges[1:])


def _by_hand(block: bytes, first: int, name: str, form: str, blanks: list[int], wanted: tuple[int, ...], number: int) -> list[NDArray[Any]]:
    """The columns of any block, empty if it has no line; appends blank lines to `blanks`."""
    characters, width, blanks_before = np.frombuffer(block + b"\n", dtype=np.uint8), len(form.split()), len(blanks)
    words = _words(characters, width)
    if words is None:
        rows = _full_lines(block, first, name, form, blanks)
        if not rows:
            return []
        characters = np.frombuffer(b"\n".join(rows) + b"\n", dtype=np.uint8)
        words = _words(characters, width)
        assert words is not None
    block_blanks = [line - first + 1 for line in blanks[blanks_before:]]
    locator = Table([], np.zeros(0, np.float32), [], name, block_blanks)

    def where(row: int) -> str:
        return f"{name}:{int(locator.where(row).rpartition(':')[2]) + first - 1}"

    columns = [_column(characters, words[0][:, column], words[1][:, column]) for column in (*wanted, number)]
    return [*columns[:-1], _numbers(columns[-1], where, form.split()[number])]


def _numbers(words: Words, where: Callable[[int], str], what: str) -> Numbers:
    try:
        numbers = words.astype(np.float64)
    except ValueError:
        numbers = np.full(len(words), np.nan)
    with np.errstate(over="ignore"):
        exact = numbers.astype(np.float32)
    underscores = words.astype(np.bytes_, copy=False).view(np.uint8) == ord("_")  # Python's float ignores them
    if underscores.any() or not np.isfinite(exact).all():
        for row, word in enumerate(words.tolist()):
            number_of(word.decode(), where(row), what)
    return exact


def number_of(text: str, where: str, what: str = "score") -> float:
    """The finite float32 number in `text`; `where` starts the message of an error."""
    try:
        number = float(text.replace("_", "?"))
    except ValueError:
        raise DataError(f"{where}: {what} is not a number: {text!r}") from None
    with np.errstate(over="ignore"):
        if not np.isfinite(np.float32(number)):
            raise DataError(f"{where}: {what} is not finite: {text!r}")
    return number


def _words(characters: NDArray[np.uint8], width: int) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Start and end of every word, [n, width] each; None unless every line has `width` words."""
    edges = np.flatnonzero(np.diff(_WHITE[characters], prepend=True))  # start, end, start, …
    newlines = np.flatnonzero(characters == _NEWLINE)
    if len(edges) != 2 * width * len(newlines):
        return None
    begins, ends = edges[0::2].reshape(-1, width), edges[1::2].reshape(-1, width)
    fits = (ends[:, -1] <= newlines).all() and (begins[1:, 0] > newlines[:-1]).all()
    return (begins, ends) if fits else None


def _full_lines(block: bytes, number: int, name: str, form: str, blanks: list[int]) -> list[bytes]:
    width, rows = len(form.split()), []
    for line, text in enumerate(block.split(b"\n"), number):
        count = len(text.split())
        if count == width:
            rows.append(text)
        elif count:
            raise DataError(f"{name}:{line}: expected {width} columns ({form}), found {count}")
        else:
            blanks.append(line)
    return rows


def _column(characters: NDArray[np.uint8], begins: NDArray[np.int64], ends: NDArray[np.int64]) -> Words:
    sizes = ends - begins
    widest = int(sizes.max())
    if widest > WIDEST:
        text = characters.tobytes()
        return np.array([text[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)], dtype=object)
    if len(characters) < begins[-1] + widest:
        characters = np.concatenate([characters, np.zeros(widest, np.uint8)])
    windows = sliding_window_view(characters, widest)[begins]  # [n, widest]
    windows[np.arange(widest) >= sizes[:, None]] = 0
    return windows.view(f"S{widest}").reshape(-1)
