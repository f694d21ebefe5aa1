"""Columns of files such as TREC runs and judgements; of runs as arrays: millions of lines without millions of Python objects.

A line with tabs has its columns between them, any other between ASCII white space, as in trec_eval; blank lines are skipped. Regular
blocks are parsed by Arrow, all others in Python, with the same result and with the line number of every fault.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from pyarrow import csv

from moeir.errors import DataError
from moeir.kernels.heap import trim_heap
from moeir.parsing import shorten_message
from moeir.records import lines
from moeir.records.ids import MAX_FIXED_BYTES, ByteStrings, Ids, dictionary_encode

_arrow: Any = pyarrow  # has no type hints
_arrow_csv: Any = csv

Numbers: TypeAlias = NDArray[np.float32]

RUN_COLUMNS = ("query", "Q0", "document", "rank", "score", "tag")
_QUERY_TYPE = _arrow.dictionary(_arrow.int32(), _arrow.string())
_ITERATION = re.compile(rb"(?i)q[0-9o]|[0-9.]+|iter|standard")
_FLOAT32_OVERFLOW = (2 - 2.0**-24) * 2.0**127  # the least number that float32 rounds to infinity


@dataclass(frozen=True, eq=False)
class ColumnTable:
    """Columns of a run with a row for each of n hits, and the words of the first line.

    queries [Q] in order of their first line, query_codes [n]: index of each row's query; document_ids and document_codes [n] alike, but
    ascending; numbers [n].
    """

    queries: list[str]
    query_codes: NDArray[np.int32]
    document_ids: Ids
    document_codes: NDArray[np.int32]
    numbers: Numbers
    first_words: list[str]


def read_columns(path: Path | str, number: int) -> ColumnTable:
    """Read the queries, the documents and the column `number`, which holds finite float32 numbers, of a run."""
    name = lines.source_name(path)
    queries, documents, numbers, first_words = list[Any](), list[ByteStrings](), list[Numbers](), list[str]()
    with lines.read_blocks(path) as blocks:
        for first, block in blocks:
            if not first_words and (line := next((line for line in block.split(b"\n") if line.strip()), None)):
                line_number = first + block[: block.index(line)].count(b"\n")
                first_columns, _ = parse_line(line, f"{name}:{line_number}", number)
                check_iteration(first_columns, line, f"{name}:{line_number}")
                first_words = [word.decode() for word in first_columns]
            columns = _parse_arrow(block, number)
            if columns is None and (regular := _regularise(block, first, name, number)):
                columns = _parse_arrow(regular, number)
            if columns is not None:
                queries.append(columns[0])
                documents.append(columns[1])
                numbers.append(columns[2])
    if not first_words:
        raise DataError(f"{name}: holds no line; expected {len(RUN_COLUMNS)} columns ({' '.join(RUN_COLUMNS)})")
    chunks = _arrow.chunked_array(queries).unify_dictionaries().chunks
    codes = np.concatenate([_view_numbers(chunk.indices, np.int32) for chunk in chunks])
    query_ids, words, scores = chunks[0].dictionary.to_pylist(), np.concatenate(documents), np.concatenate(numbers)
    del queries, documents, numbers, columns, chunks
    release_memory(len(codes))
    return ColumnTable(query_ids, codes, *dictionary_encode(words), scores, first_words)


def release_memory(rows: int) -> None:
    """Return freed memory to the system after reading many rows: it is fragmented, and later arrays do not fit into it."""
    if rows < 2**20:
        return
    _arrow.default_memory_pool().release_unused()
    trim_heap()


def _parse_arrow(block: bytes, number: int) -> tuple[Any, ByteStrings, Numbers] | None:
    """Queries, documents and numbers of a regular block, with one separator between words; None for any other block."""
    block = block.replace(b"\r\n", b"\n").removesuffix(b"\r")
    space = b"\t" if b"\t" in block else b" "
    irregular = (b"\r", b"\x0b", b"\x0c", 2 * space, b"\n" + space, space + b"\n", *([b" "] if space == b"\t" else []))
    if block.startswith(space) or block.endswith(space) or any(letters in block for letters in irregular):
        return None
    if block.startswith(lines.BYTE_ORDER_MARK):
        block = lines.BYTE_ORDER_MARK + block  # Arrow drops one; in the middle of a file it is a part of an id
    types = {"query": _QUERY_TYPE, "document": _arrow.binary(), RUN_COLUMNS[number]: _arrow.float64()}
    try:
        table = _arrow_csv.read_csv(
            _arrow.BufferReader(block),
            _arrow_csv.ReadOptions(column_names=RUN_COLUMNS, block_size=len(block) + 1, use_threads=False),
            _arrow_csv.ParseOptions(delimiter=space.decode(), quote_char=False, escape_char=False),
            _arrow_csv.ConvertOptions(include_columns=list(types), column_types=types, null_values=[], check_utf8=False),
        )
    except _arrow.ArrowInvalid:
        return None
    if not len(table):
        return None
    queries, documents, values = (column.chunk(0) for column in table.columns)
    with np.errstate(over="ignore"):
        numbers = _view_numbers(values, np.float64).astype(np.float32)
    return (queries, _pad_words(documents), numbers) if np.isfinite(numbers).all() else None


def _view_numbers(column: Any, dtype: type) -> NDArray[Any]:
    """An Arrow column of numbers as an array; `to_numpy` would import pandas, which takes a fifth of a second."""
    return np.frombuffer(column.buffers()[1], dtype, len(column))


def _pad_words(column: Any) -> ByteStrings:
    """An Arrow column of words as an array, padded by zeros to a multiple of four bytes, which numpy copies in a third of the time."""
    _, offsets, buffer = column.buffers()
    edges, characters = np.frombuffer(offsets, np.int32, len(column) + 1).astype(np.int64), np.frombuffer(buffer, np.uint8)
    sizes = np.diff(edges)
    width = -(-int(sizes.max()) // 4) * 4
    if width > MAX_FIXED_BYTES:
        return np.array(column.to_pylist(), dtype=object)
    if len(characters) < edges[-2] + width:
        characters = np.concatenate([characters, np.zeros(width, np.uint8)])
    words = sliding_window_view(characters, width)[edges[:-1]]  # [n, width]
    words[np.arange(width) >= sizes[:, None]] = 0
    return words.view(f"S{width}").reshape(-1)


def _regularise(block: bytes, first: int, name: str, number: int) -> bytes:
    """The lines of any block as `_parse_arrow` takes them, checked in Python."""
    regular = list[bytes]()
    for line_number, line in enumerate(block.split(b"\n"), first):
        if line.strip():
            words, value = parse_line(line, f"{name}:{line_number}", number)
            words[number] = repr(value).encode()
            regular.append(b" ".join(words))
    return b"\n".join(regular)


def parse_line(line: bytes, where: str, number: int) -> tuple[list[bytes], float]:
    """The words of a line of a run, and the finite float32 number in column `number`; `where` starts the message of an error."""
    words = split_columns(line)
    if len(words) != len(RUN_COLUMNS):
        raise DataError(f"{where}: expected {len(RUN_COLUMNS)} columns ({' '.join(RUN_COLUMNS)}), found {describe_columns(line)}")
    words[-1] = b"_".join(words[-1].split())  # so that it can be written between spaces, too
    check_words(words, RUN_COLUMNS, where)
    return words, parse_float32(words[number].decode(), where, RUN_COLUMNS[number])


def split_columns(line: bytes) -> list[bytes]:
    r"""The columns of a line: between tabs if it has any, so that an id with a space stays whole, else between ASCII white space.

    >>> split_columns(b"q1\tdoc 17\t1"), split_columns(b" q1  Q0 d1 2")
    ([b'q1', b'doc 17', b'1'], [b'q1', b'Q0', b'd1', b'2'])
    """
    return list(map(bytes.strip, line.split(b"\t"))) if b"\t" in line else line.split()


def describe_columns(line: bytes) -> str:
    """How many columns a line has, or what it is that has none, for a message."""
    between = " between tabs" if b"\t" in line else ""
    return lines.describe_markup(line.decode()) or f"{len(split_columns(line))}{between}"


def check_words(columns: Sequence[bytes], names: Sequence[str], where: str) -> None:
    """DataError for a column between tabs that is not one word."""
    for name, column in zip(names, columns):
        if not column.isalnum() and len(column.split()) != 1:
            problem = f"{name} is {'empty' if not column else 'not one word'}: {shorten_message(repr(column.decode()))}"
            raise DataError(f"{where}: {problem}; columns are between tabs here")


def check_iteration(columns: Sequence[bytes], line: bytes, where: str) -> None:
    """DataError unless the second column is that of TREC's formats, or tabs tell it from a part of an id."""
    if b"\t" not in line and not _ITERATION.fullmatch(columns[1]):
        problem = f"the second of {len(columns)} columns is {shorten_message(repr(columns[1].decode()))}, expected Q0 or a number"
        raise DataError(f"{where}: {problem}; separate columns by tabs, and leave no white space in an id")


def parse_float32(text: str, where: str, what: str = "score") -> float:
    """The finite float32 number in `text`; `where` starts the message of an error."""
    try:
        value = float(text.replace("_", "?").encode())  # bytes, as float() takes underscores, and other digits than ASCII in a string
    except ValueError:
        raise DataError(f"{where}: {what} is not a number: {text!r}") from None
    if not abs(value) < _FLOAT32_OVERFLOW:
        raise DataError(f"{where}: {what} is not finite: {text!r}")
    return value
