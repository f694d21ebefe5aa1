"""Tolerant reading: faults at which a reader would stop become findings, and reading continues."""

import re
from collections.abc import Iterator
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
                for number, line in _decode_block(block, first, file):
                    if line.strip():
                        has_lines = True
                        yield number, line.removesuffix("\r")
    except DataError as problem:
        file.refuse_copy(problem)
        file.add_error(problem)
        return
    if not has_lines:
        file.add(None, "empty-file", "the file is empty")


def _decode_block(block: bytes, first: int, file: FileFindings) -> Iterator[tuple[int, str]]:
    block = block.removeprefix(lines.BYTE_ORDER_MARK) if first == 1 else block
    if b"\0" not in block:
        try:
            yield from enumerate(block.decode().split("\n"), first)
            return
        except UnicodeDecodeError:
            pass
    for number, line in enumerate(block.split(b"\n"), first):
        if b"\0" in line:
            file.add(number, "control-character", "a byte is zero")
            line = line.replace(b"\0", b" ")
        try:
            yield number, line.decode()
        except UnicodeDecodeError as fault:
            file.add(number, "not-utf8", f"byte 0x{line[fault.start]:02x}")
            yield number, line.decode("cp1252", errors="replace")


def parse_content(content: Any, where: str, file: FileFindings) -> tuple[Any, Any]:
    """A line with spaces for unescaped control characters, which are a finding, and its JSON value; DataError if it is broken.

    A content that is a record instead of a line is both.
    """
    if not isinstance(content, str):
        return content, content
    try:
        return content, texts.parse_json(content, where)
    except DataError as problem:
        if problem.code != "control-character":
            raise
    line = _replace_controls(content, UNESCAPED_CHARACTERS, line_number(where), file)
    return line, texts.parse_json(line, where)


def line_number(where: str) -> int | None:
    """The number of the line or row of a location; None if it has none.

    >>> line_number("corpus.jsonl:7"), line_number("hf:scifact: row 7"), line_number("bge.jsonl")
    (7, 7, None)
    """
    digits = where.rpartition(":")[2].removeprefix(" row ")
    return int(digits) if digits.isdecimal() else None


def repair_text(text: str, line: int | None, file: FileFindings) -> str:
    """A text without mojibake and control characters; each is a finding at its line."""
    if not text.isascii() and (repaired := ftfy.fix_encoding(text)) != text:
        first = next((index for index, (old, new) in enumerate(zip(text, repaired, strict=False)) if old != new), len(repaired))
        file.add(line, "mojibake", f"{_excerpt(text, first)} was {_excerpt(repaired, first)}")
        text = repaired
    text = _replace_controls(text, CONTROL_CHARACTERS, line, file)
    if "\ufffd" in text:
        file.add(line, "replacement-character", f"U+FFFD in {_excerpt(text, text.index(chr(0xFFFD)))}")
    return text


def repair_record(record: dict[str, Any]) -> dict[str, Any]:
    """A record of a text whose strings, but for its id, are repaired as by `repair_text`."""
    is_text = {name: isinstance(value, str) and name not in texts.ID_FIELDS for name, value in record.items()}
    return {name: CONTROL_CHARACTERS.sub(" ", ftfy.fix_encoding(value)) if is_text[name] else value for name, value in record.items()}


def _replace_controls(text: str, pattern: re.Pattern[str], line: int | None, file: FileFindings) -> str:
    """The text with spaces for control characters, the first of which is a finding."""
    if (control := pattern.search(text)) is None:
        return text
    file.add(line, "control-character", f"U+{ord(control[0]):04X} in {_excerpt(text, control.start())}")
    return pattern.sub(" ", text)


def _excerpt(text: str, index: int) -> str:
    return repr(text[max(0, index - 12) : index + 13])
