"""Tolerant reading: faults at which a reader would stop become findings, and reading continues."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import ftfy

from moeir.data_checks.findings import FileFindings
from moeir.errors import DataError
from moeir.records import lines, texts

CONTROL_CHARACTERS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
UNESCAPED_CHARACTERS = re.compile("[\x00-\x1f]")  # which JSON does not allow in a string


def read_tolerantly(file: FileFindings) -> Iterator[tuple[int, str]]:
    """Number and text of every non-blank line of a file; of a damaged archive, those before the damage.

    A line that is not UTF-8 is decoded as Windows-1252, a zero byte as a space, and both are findings.
    """
    has_lines = False
    try:
        with lines.read_blocks(file.path, check=False) as blocks:
            for first, block in blocks:
                for number, line in enumerate(block.split(b"\n"), first):
                    if line.strip():
                        has_lines = True
                        yield number, _decode_line(line, number, file)
    except DataError as problem:
        file.refuse_copy(problem)
        file.add_error(problem)
        return
    if not has_lines:
        file.add(None, "faulty-file", "the file is empty")


def _decode_line(line: bytes, number: int, file: FileFindings) -> str:
    line = line.removeprefix(lines.BYTE_ORDER_MARK) if number == 1 else line
    line = line.removesuffix(b"\r")
    if b"\0" in line:
        file.add(number, "control-character", "a byte is zero")
        line = line.replace(b"\0", b" ")
    try:
        return line.decode()
    except UnicodeDecodeError as fault:
        file.add(number, "not-utf8", f"byte 0x{line[fault.start]:02x}")
        return line.decode("cp1252", errors="replace")


def parse_tolerantly(content: Any, where: str, file: FileFindings, parse: Callable[[Any, str], Any] = texts.parse_json) -> tuple[Any, Any]:
    """A line, with spaces for unescaped control characters, which are a finding, and its value; DataError if it is broken.

    A content that is an object instead of a line is both.
    """
    if isinstance(content, dict):
        return content, content
    try:
        return content, parse(content, where)
    except DataError:
        if not isinstance(content, str) or UNESCAPED_CHARACTERS.search(content) is None:
            raise
    line = UNESCAPED_CHARACTERS.sub(" ", content)
    value = parse(line, where)
    _replace_controls(content, UNESCAPED_CHARACTERS, line_number(where), file)
    return line, value


def line_number(where: str) -> int | None:
    """The number of the line or row of a location; None if it has none.

    >>> line_number("corpus.jsonl:7"), line_number("hf:scifact: row 7"), line_number("bge.jsonl")
    (7, 7, None)
    """
    digits = where.rpartition(":")[2].removeprefix(" row ")
    return int(digits) if digits.isdecimal() else None


def repair_record(record: Any, line: int | None, file: FileFindings) -> Any:
    """A record whose strings, but for its id, are without mojibake and control characters; each is a finding at its line."""
    if not isinstance(record, dict):
        return record
    is_text = {name: isinstance(value, str) and name not in texts.ID_FIELDS for name, value in record.items()}
    return {name: _repair_text(value, line, file) if is_text[name] else value for name, value in record.items()}


def _repair_text(text: str, line: int | None, file: FileFindings) -> str:
    if not text.isascii() and (repaired := ftfy.fix_encoding(text)) != text:
        first = next((index for index, (old, new) in enumerate(zip(text, repaired, strict=False)) if old != new), len(repaired))
        file.add(line, "mojibake", f"{_excerpt(text, first)} was {_excerpt(repaired, first)}")
        text = repaired
    return _replace_controls(text, CONTROL_CHARACTERS, line, file)


def _replace_controls(text: str, pattern: re.Pattern[str], line: int | None, file: FileFindings) -> str:
    """The text with spaces for control characters, the first of which is a finding."""
    if (control := pattern.search(text)) is None:
        return text
    file.add(line, "control-character", f"U+{ord(control[0]):04X} in {_excerpt(text, control.start())}")
    return pattern.sub(" ", text)


def _excerpt(text: str, index: int) -> str:
    return repr(text[max(0, index - 12) : index + 13])
