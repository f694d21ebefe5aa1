"""Tolerant reading: faults at which a reader would stop become findings, and reading continues."""

import re
from collections.abc import Iterator

import ftfy

from moeir.data_checks.findings import FileFindings
from moeir.errors import DataError
from moeir.records import lines

CONTROL_CHARACTERS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


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


def repair_text(text: str, line: int | None, file: FileFindings) -> str:
    """A text without mojibake and control characters; each is a finding at its line."""
    if not text.isascii() and (repaired := ftfy.fix_encoding(text)) != text:
        first = next((index for index, (old, new) in enumerate(zip(text, repaired, strict=False)) if old != new), len(repaired))
        file.add(line, "mojibake", f"{_excerpt(text, first)} was {_excerpt(repaired, first)}")
        text = repaired
    if control := CONTROL_CHARACTERS.search(text):
        file.add(line, "control-character", f"U+{ord(control[0]):04X} in {_excerpt(text, control.start())}")
        text = CONTROL_CHARACTERS.sub(" ", text)
    if "\ufffd" in text:
        file.add(line, "replacement-character", f"U+FFFD in {_excerpt(text, text.index(chr(0xFFFD)))}")
    return text


def _excerpt(text: str, index: int) -> str:
    return repr(text[max(0, index - 12) : index + 13])
