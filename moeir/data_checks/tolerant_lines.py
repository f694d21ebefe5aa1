"""Tolerant reading: faults at which a reader would stop become findings, and reading continues."""

import re
from collections.abc import Iterator
from typing import Any

import ftfy

from moeir.data_checks.findings import FileFindings
from moeir.errors import DataError
from moeir.records import lines, texts

CONTROL_CHARACTERS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def read_tolerantly(file: FileFindings) -> Iterator[tuple[int, str]]:
    """Number and text of every line of a file; of a damaged archive, those before the damage.

    A line that is not UTF-8 is decoded as Windows-1252, and is a finding.
    """
    is_empty = True
    try:
        with lines.read_blocks(file.path, check=False) as blocks:
            for first, block in blocks:
                for number, line in enumerate(block.split(b"\n"), first):
                    is_empty = is_empty and not line.strip()
                    try:
                        text = line.decode()
                    except UnicodeDecodeError as fault:
                        file.add(f"{file.name}:{number}", "not-utf8", f"byte 0x{line[fault.start]:02x}")
                        text = line.decode("cp1252", errors="replace")
                    yield number, text.removesuffix("\r")
    except DataError as problem:
        file.add_error(problem)
        return
    if is_empty:
        file.add(file.name, "faulty-file", "the file is empty")


def check_characters(record: Any, where: str, file: FileFindings) -> None:
    """Add a finding for each string of a record, but for its id, that has mojibake or control characters."""
    for name, text in record.items() if isinstance(record, dict) else ():
        if not isinstance(text, str) or name in texts.ID_FIELDS or (text.isascii() and text.isprintable()):
            continue
        for kind, repair in (("mojibake", ftfy.fix_encoding), ("control-character", lambda text: CONTROL_CHARACTERS.sub(" ", text))):
            if (repaired := repair(text)) != text:
                first = next((index for index, (old, new) in enumerate(zip(text, repaired)) if old != new), len(repaired))
                around = slice(max(0, first - 12), first + 13)
                file.add(where, kind, f"{text[around]!r} should be {repaired[around]!r}")
                text = repaired
