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
    """Number and text of every line of a file; of a damaged archive, those before the damage.

    A line that is not UTF-8 is decoded as Windows-1252, a zero byte as a space, and both are findings.
    """
    is_empty = True
    try:
        with lines.read_blocks(file.path, check=False) as blocks:
            for first, block in blocks:
                for number, line in enumerate(block.split(b"\n"), first):
                    is_empty = is_empty and not line.strip()
                    yield number, _decode_line(line.removesuffix(b"\r"), f"{file.name}:{number}", file)
    except DataError as problem:
        file.refuse_copy(problem)
        file.add_error(problem)
        return
    if is_empty:
        file.add(file.name, "faulty-file", "the file is empty")


def _decode_line(line: bytes, where: str, file: FileFindings) -> str:
    if b"\0" in line:
        file.add(where, "control-character", "a byte is zero")
        line = line.replace(b"\0", b" ")
    try:
        return line.decode()
    except UnicodeDecodeError as fault:
        file.add(where, "not-utf8", f"byte 0x{line[fault.start]:02x}")
        return line.decode("cp1252", errors="replace")


def parse_tolerantly(content: Any, where: str, file: FileFindings, parse: Callable[[Any, str], Any] = texts.parse_json) -> tuple[Any, Any]:
    """A line, with spaces for unescaped control characters, which are a finding, and its record; of a record, itself twice."""
    try:
        return content, content if isinstance(content, dict) else parse(content, where)
    except DataError:
        if not isinstance(content, str) or (control := UNESCAPED_CHARACTERS.search(content)) is None:
            raise
    line = UNESCAPED_CHARACTERS.sub(" ", content)
    record = parse(line, where)
    _add_control(control, content, where, file)
    return line, record


def repair_record(record: Any, where: str, file: FileFindings) -> Any:
    """A record whose strings, but for its id, are without mojibake and control characters; each is a finding."""
    if not isinstance(record, dict):
        return record
    is_text = {name: isinstance(value, str) and name not in texts.ID_FIELDS for name, value in record.items()}
    return {name: _repair_text(value, where, file) if is_text[name] else value for name, value in record.items()}


def _repair_text(text: str, where: str, file: FileFindings) -> str:
    if not text.isascii() and (repaired := ftfy.fix_encoding(text)) != text:
        first = next((index for index, (old, new) in enumerate(zip(text, repaired, strict=False)) if old != new), len(repaired))
        file.add(where, "mojibake", f"{_excerpt(text, first)} was {_excerpt(repaired, first)}")
        text = repaired
    if (control := CONTROL_CHARACTERS.search(text)) is not None:
        _add_control(control, text, where, file)
    return CONTROL_CHARACTERS.sub(" ", text)


def _add_control(control: re.Match[str], text: str, where: str, file: FileFindings) -> None:
    file.add(where, "control-character", f"U+{ord(control[0]):04X} in {_excerpt(text, control.start())}")


def _excerpt(text: str, index: int) -> str:
    return repr(text[max(0, index - 12) : index + 13])
