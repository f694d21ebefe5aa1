"""Read and write lines of text in files, `.gz`, `.zst` and pipes; every fault has its file and line number.

Only a newline ends a line; a byte order mark and carriage returns are dropped. Memory holds a block, or one line of at most
`MAX_LINE_BYTES`, so that no small archive fills it.
"""

import csv
import io
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import numpy as np

from moeir import data_sources
from moeir.errors import DataError, UsageError
from moeir.parsing import escape_controls

STANDARD_OUTPUT: ContextVar[BinaryIO | None] = ContextVar("standard output", default=None)  # what `-` writes to, if not sys.stdout
_CODECS = {".gz": "gzip", ".zst": "zstd"}
BLOCK_BYTES = 1 << 20
MAX_LINE_BYTES = 1 << 30  # so that no small archive fills the memory
NEWLINE = b"\n"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_CSV_RULE = 'a column that begins with " ends with ", and a " within it is doubled, as in any CSV file'
_BINARY_FORMATS = {  # by their first bytes: what it is, and what reads it
    b"PAR1": "a parquet file; hf:FOLDER reads the parquet files of a folder, and --train one whose name ends with .parquet",
    b"\x1f\x8b": "compressed by gzip; its name should end with .gz",
    b"\x28\xb5\x2f\xfd": "compressed by Zstandard; its name should end with .zst",
    b"PK\x03\x04": "a zip archive; unpack it",
}
_MARKUPS = {  # by how a line begins
    r"<top|<num": "TREC topics: write a line with number, tab and title for each, or name irds:NAME#queries",
    r"<doc": 'TREC documents: write JSON lines {"_id", "text"}, or name irds:NAME#docs',
    r"<": "XML: write JSON lines, or columns between tabs",
    r'"?(_|[\w-]*[_-]|doc|q|p)?id"?,': "columns between commas: write them between tabs",
    r"[{\[]": "JSON: a file of texts is called .jsonl; a run {query: {document: score}} and judgements {query: {document: grade}} need "
    "lines: query Q0 document rank score tag, and query 0 document grade",
}


def source_name(path: Path | str, stream: str = "standard input") -> str:
    """The file's name in error messages: its path, or `stream` for `-`."""
    return stream if str(path) == "-" else str(path)


def strip_compression_suffix(path: Path | str) -> Path:
    """The path without `.gz` or `.zst`, so that its suffix is that of the content."""
    plain = Path(path)
    return plain.with_suffix("") if plain.suffix in _CODECS else plain


def describe_markup(line: str) -> str:
    """What a line is that begins with markup, and what to do with its file; else nothing.

    >>> describe_markup("<top>")
    'TREC topics: write a line with number, tab and title for each, or name irds:NAME#queries'
    """
    return next((words for start, words in _MARKUPS.items() if re.match(rf"\s*(?i:{start})", line)), "")


def is_compressed(path: Path | str) -> bool:
    """Whether `open_writer` compresses what is written to a path."""
    return Path(path).suffix in _CODECS


@contextmanager
def open_lines(path: Path | str) -> Iterator[Iterator[tuple[int, str]]]:
    """The numbered lines of a text file, a `.gz`, a `.zst`, or `-` for standard input."""
    with read_blocks(path) as parts:
        yield ((number, line.removesuffix("\r")) for first, part in parts for number, line in enumerate(part.decode().split("\n"), first))


@contextmanager
def read_blocks(path: Path | str, *, check: bool = True) -> Iterator[Iterator[tuple[int, bytes]]]:
    """Blocks of lines: the number of the first line, and the bytes without the last newline; checked to be UTF-8 if `check`."""
    if str(path) == "-":
        yield _split_blocks(sys.stdin.buffer, source_name(path), check)
        return
    if (content := data_sources.read_memory(path)) is not None:
        yield _split_blocks(io.BytesIO(content), str(path), check)
        return
    try:
        stream = open(path, "rb")  # noqa: SIM115 closed by the `with` below; errors while opening differ from errors while reading
    except OSError as fault:
        problem = "no such file" if isinstance(fault, FileNotFoundError) else f"cannot be read: {fault.strerror}"
        raise DataError(f"{path}: {problem}") from None
    with stream:
        yield _split_blocks(_compressed_stream(stream, path, write=False), str(path), check)


@contextmanager
def open_writer(path: Path | str) -> Iterator[TextIO]:
    """A stream to write lines to: a file, `.gz`, `.zst`, or `-` for standard output. Equal lines give equal bytes."""
    if (files := data_sources.memory_files(path)) is not None:
        content = io.StringIO(newline="\n")
        yield content
        files[Path(path).name] = content.getvalue().encode()
        return
    if str(path) == "-":
        text = io.TextIOWrapper(STANDARD_OUTPUT.get() or sys.stdout.buffer, encoding="utf-8", newline="\n")
        try:
            yield text
            text.flush()
        finally:
            text.detach()
        return
    with (
        open(path, "wb") as stream,
        _compressed_stream(stream, path, write=True) as compressed,
        io.TextIOWrapper(compressed, encoding="utf-8", newline="\n") as text,
    ):
        yield text


def read_csv(numbered: Iterable[tuple[int, str]], name: str, delimiter: str = "\t") -> Iterator[tuple[str, list[str]]]:
    r"""The location (file:line) where each row of a table begins, and its columns; one in quotation marks may hold line breaks.

    >>> list(read_csv([(1, "id\ttext"), (2, '7\tAn "owl".'), (3, '8\t"A ""cat""'), (4, 'waits."')], "c.tsv"))[1:]
    [('c.tsv:2', ['7', 'An "owl".']), ('c.tsv:3', ['8', 'A "cat"\nwaits.'])]
    """
    first, width, opening = 0, 0, list[str]()

    def physical_lines() -> Iterator[str]:
        nonlocal first, opening
        for number, line in numbered:
            cells = line.split(delimiter)
            if not first:
                first, opening = number, cells
            elif (
                delimiter == "\t"  # commas stand in texts, too
                and len(cells) == len(opening) == width
                and cells[0].isdigit() == opening[0].isdigit()
                and re.fullmatch(r'[^\s"]+', cells[0])
            ):
                problem = f'a column begins with " and is not closed before line {number}, a row of its own'
                raise DataError(f"{name}:{first}: {problem}; {_CSV_RULE}")
            yield line + "\n"

    csv.field_size_limit(MAX_LINE_BYTES)
    try:
        for row in csv.reader(physical_lines(), delimiter=delimiter, strict=True):
            width = width or len(row)
            if len(row) > 1 or "".join(row).strip():
                yield f"{name}:{first}", row
            first = 0
    except csv.Error as problem:
        raise DataError(f"{name}:{first}: not a table: {escape_controls(str(problem))}; {_CSV_RULE}") from None


def write_rows(rows: Iterable[Iterable[object]], path: Path | str, separator: str = "\t") -> int:
    """Write separated columns and return the number of lines."""
    return write_lines((separator.join(map(str, row)) for row in rows), path)


def write_lines(contents: Iterable[str], path: Path | str) -> int:
    """Write lines, given without their newlines, as by `open_writer`, and return their number; a failure leaves no file."""
    count, may_remove = 0, False
    try:
        with open_writer(path) as output:
            may_remove = str(path) != "-"
            for content in contents:
                count += 1
                output.write(check_characters(content, f"{source_name(path, 'standard output')}:{count}") + "\n")
    except BaseException:
        if may_remove and Path(path).is_file():  # neither a pipe nor a device
            Path(path).unlink()
        raise
    return count


def check_characters(text: str, where: str) -> str:
    """The text, or an error for what UTF-8 does not write: halves of characters, which no reader takes either."""
    try:
        text.isascii() or text.encode()
    except UnicodeEncodeError as fault:
        problem = f"half a character (a lone surrogate): {text[fault.start]!r} at character {fault.start + 1}"
        raise DataError(f"{where}: {problem}") from None
    return text


def _compressed_stream(stream: BinaryIO, path: Path | str, *, write: bool) -> Any:
    """The stream, compressed or decompressed by the suffix of the path."""
    if (codec := _CODECS.get(Path(path).suffix)) is None:
        return stream
    import pyarrow

    if write:
        return pyarrow.CompressedOutputStream(stream, codec)
    return io.BufferedReader(pyarrow.CompressedInputStream(stream, codec), BLOCK_BYTES)


def _split_blocks(stream: BinaryIO, name: str, check: bool) -> Iterator[tuple[int, bytes]]:
    number = 1
    try:
        while block := stream.read(BLOCK_BYTES) + stream.readline(MAX_LINE_BYTES):
            if len(block) > MAX_LINE_BYTES:
                raise UsageError(f"{name}:{number + block.count(NEWLINE)}: a line of more than {MAX_LINE_BYTES:,} bytes")
            if number == 1:
                if kind := next((words for start, words in _BINARY_FORMATS.items() if block.startswith(start)), None):
                    raise DataError(f"{name}: expected text, found {kind}")
                block = block.removeprefix(BYTE_ORDER_MARK)
            block = block.removesuffix(NEWLINE)
            if check:
                _check_text(block, number, name)
            yield number, block
            newlines = np.frombuffer(block or b" ", np.uint8) == NEWLINE[0]  # faster than bytes.count
            number += int(np.count_nonzero(newlines)) + 1
    except OSError as fault:
        problem = f"damaged archive near line {number}: {fault}" if fault.errno is None else f"cannot be read: {fault.strerror}"
        raise DataError(f"{name}: {problem}") from None


def _check_text(block: bytes, number: int, name: str) -> None:
    position, problem = block.find(b"\0"), "not a text file: found a zero byte; expected UTF-8 text"
    if position < 0:
        try:
            _ = block.isascii() or block.decode()  # the first is fast, and enough for most blocks
            return
        except UnicodeDecodeError as fault:
            position, problem = fault.start, f"not UTF-8: byte 0x{block[fault.start]:02x}; convert the file to UTF-8"
    raise DataError(f"{name}:{number + block.count(NEWLINE, 0, position)}: {problem}")
