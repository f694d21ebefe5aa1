"""Columns of files such as TREC runs and judgements; of runs as arrays: millions of lines without millions of Python objects.

A line with tabs has its columns between them, any other between ASCII white space, as in trec_eval; blank lines are skipped. Regular
blocks are parsed by Arrow, all others in Python, with the same result and with the line number of every fault.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow
from numpy.typing import NDArray
from pyarrow import csv

from moeir.errors import DataError
from moeir.kernels.heap import trim_heap
from moeir.parsing import shorten_message
from moeir.records import lines
from moeir.records.ids import ByteStrings, Ids, as_byte_strings, dictionary_encode

_arrow: Any = pyarrow  # has no type hints
_arrow_csv: Any = csv

Numbers: TypeAlias = NDArray[np.float32]

RUN_COLUMNS = ("query", "Q0", "document", "rank", "score", "tag")
_EXPECTED_COLUMNS, _SCORE = f"{len(RUN_COLUMNS)} columns ({' '.join(RUN_COLUMNS)})", RUN_COLUMNS.index("score")
_QUERY_TYPE = _arrow.dictionary(_arrow.int32(), _arrow.string())
_ITERATION = re.compile(rb"(?i)q[0-9o]|[0-9.]+|iter|standard")
_FLOAT32_OVERFLOW = (2 - 2.0**-24) * 2.0**127  # the least number that float32 rounds to infinity


def read_columns(path: Path | str) -> tuple[list[str], NDArray[np.int32], Ids, NDArray[np.int32], Numbers, str]:
    """Read a run of n hits: queries [Q] in order of their first line, each hit's query among them [n]; ids of the documents, ascending,
    each hit's document among them [n]; scores [n], finite; the tag of the first line."""
    name, tag = lines.source_name(path), ""
    queries, documents, scores = list[Any](), list[ByteStrings](), list[Numbers]()
    with lines.read_blocks(path) as blocks:
        for first, block in blocks:
            if not tag:
                for number, line in islice(_number_lines(block, first), 1):
                    first_columns, _ = parse_line(line, f"{name}:{number}")
                    check_iteration(first_columns, line, f"{name}:{number}")
                    tag = first_columns[-1].decode()
            columns = _parse_arrow(block)
            if columns is None and (regular := _regularise(block, first, name)):
                columns = _parse_arrow(regular)
            if columns is not None:
                queries.append(columns[0])
                documents.append(columns[1])
                scores.append(columns[2])
    if not tag:
        raise DataError(f"{name}: holds no line; expected {_EXPECTED_COLUMNS}")
    chunks = _arrow.chunked_array(queries).unify_dictionaries().chunks
    codes = np.concatenate([_view_numbers(chunk.indices, np.int32) for chunk in chunks])
    query_ids, words, values = chunks[0].dictionary.to_pylist(), np.concatenate(documents), np.concatenate(scores)
    del queries, documents, scores, columns, chunks
    release_memory(len(codes))
    return query_ids, codes, *dictionary_encode(words), values, tag


def release_memory(rows: int) -> None:
    """Return freed memory to the system after reading many rows: it is fragmented, and later arrays do not fit into it."""
    if rows < 2**20:
        return
    _arrow.default_memory_pool().release_unused()
    trim_heap()


def _parse_arrow(block: bytes) -> tuple[Any, ByteStrings, Numbers] | None:
    """Queries, documents and scores of a regular block, with one separator between words; None for any other block."""
    block = block.replace(b"\r\n", b"\n").removesuffix(b"\r")
    space = b"\t" if b"\t" in block else b" "
    irregular = (b"\r", b"\x0b", b"\x0c", 2 * space, b"\n" + space, space + b"\n", *([b" "] if space == b"\t" else []))
    if block.startswith(space) or block.endswith(space) or any(letters in block for letters in irregular):
        return None
    if block.startswith(lines.BYTE_ORDER_MARK):
        block = lines.BYTE_ORDER_MARK + block  # Arrow drops one; in the middle of a file it is a part of an id
    types = {"query": _QUERY_TYPE, "document": _arrow.binary(), "score": _arrow.float64()}
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
    return (queries, as_byte_strings(documents.to_pylist()), numbers) if np.isfinite(numbers).all() else None


def _view_numbers(column: Any, dtype: type) -> NDArray[Any]:
    """An Arrow column of numbers as an array; `to_numpy` would import pandas, which takes a fifth of a second."""
    return np.frombuffer(column.buffers()[1], dtype, len(column))


def _number_lines(block: bytes, first: int) -> Iterator[tuple[int, bytes]]:
    """The lines of a block that are not blank, with their numbers."""
    return ((number, line) for number, line in enumerate(block.split(b"\n"), first) if line.strip())


def _regularise(block: bytes, first: int, name: str) -> bytes:
    """The lines of any block as `_parse_arrow` takes them, checked in Python."""
    regular = list[bytes]()
    for number, line in _number_lines(block, first):
        words, score = parse_line(line, f"{name}:{number}")
        words[_SCORE] = repr(score).encode()
        regular.append(b" ".join(words))
    return b"\n".join(regular)


def parse_line(line: bytes, where: str) -> tuple[list[bytes], float]:
    """The words of a line of a run, and its score; `where` starts the message of an error."""
    words = split_columns(line)
    if len(words) != len(RUN_COLUMNS):
        raise DataError(f"{where}: expected {_EXPECTED_COLUMNS}, found {describe_columns(line)}")
    words[-1] = b"_".join(words[-1].split())  # so that it can be written between spaces, too
    check_words(words, RUN_COLUMNS, where)
    return words, parse_float32(words[_SCORE].decode(), where)


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


def parse_float32(text: str, where: str) -> float:
    """The finite float32 number in `text`; `where` starts the message of an error."""
    try:
        value = float(text.replace("_", "?").encode())  # bytes, as float() takes underscores, and other digits than ASCII in a string
    except ValueError:
        raise DataError(f"{where}: score is not a number: {text!r}") from None
    if not abs(value) < _FLOAT32_OVERFLOW:
        raise DataError(f"{where}: score is not finite: {text!r}")
    return value
