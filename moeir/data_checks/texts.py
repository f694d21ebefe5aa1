"""Checks of corpora and queries: faulty lines, repeated ids and texts, queries that are documents, and how many texts and tokens are lost
to truncation.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from moeir.data_checks.findings import Findings
from moeir.data_checks.tolerant_lines import read_tolerantly, repair_text
from moeir.errors import DataError
from moeir.records import dpr, lines, texts
from moeir.records.texts import Text

TextCallback = Callable[[str, int | None, Text], None]


@dataclass
class SeenTexts:
    """Ids and fingerprints of texts. `queries` maps fingerprints of queries, which no document should have, to ids."""

    ids: set[str] = field(default_factory=set)
    fingerprints: set[int] = field(default_factory=set)
    queries: dict[int, str] = field(default_factory=dict)

    def fingerprint(self, text: str) -> int:
        """64-bit hash of a text, regardless of case and white space."""
        return hash(" ".join(text.lower().split()))


def check_texts(
    path: Path | str, findings: Findings, seen_texts: SeenTexts, on_text: TextCallback | None = None, *, keep_empty: bool = False
) -> Iterator[str]:
    """Lines of a repaired copy; adds every id and text to `seen_texts` and calls `on_text(file, line, text)` for each.

    Sources that are not lines (DPR's array, `hf:`, `irds:`) are checked as far as they can be read.
    """
    source, name = str(path), lines.source_name(path)
    if source.startswith(("hf:", "irds:")):
        yield from _check_records(texts.read_records(source), name, findings, seen_texts, on_text, keep_empty)
        return
    numbered_lines = read_tolerantly(path, findings)
    first = next(numbered_lines, None)
    if first is None:
        return
    numbered_lines, kind = chain([first], numbered_lines), texts.detect_form(path, first[1])
    if kind in ("array", "answers"):
        records: Any = dpr.read_question_rows(name, numbered_lines) if kind == "answers" else _dpr_questions(name, numbered_lines)
        yield from _check_records(records, name, findings, seen_texts, on_text, keep_empty)
        return
    names, headed = texts.parse_header(first[1]) if kind == "tabs" else ([], False)
    if headed:
        yield next(numbered_lines)[1]
    for number, line in numbered_lines:
        try:
            record = texts.parse_row(line, names, f"{name}:{number}") if names else _load_json(line, name, number, findings)
            text = texts.parse_text(record, f"{name}:{number}")
        except DataError as problem:
            findings.add_error(name, problem)
            continue
        repaired = _accept(text, name, number, findings, seen_texts, keep_empty)
        if repaired is None:
            continue
        if on_text is not None:
            on_text(name, number, repaired)
        yield line if repaired is text and not _has_control_characters(line) else _format_line(record, repaired, text, names)


def _dpr_questions(name: str, numbered_lines: Iterator[tuple[int, str]]) -> Iterator[tuple[str, Any]]:
    return ((where, dpr.question_record(entry, position)) for position, (where, entry) in enumerate(dpr.read_array(name, numbered_lines)))


def _check_records(
    records: Iterator[tuple[str, Any]], name: str, findings: Findings, seen_texts: SeenTexts, on_text: TextCallback | None, keep_empty: bool
) -> Iterator[str]:
    """Check records of a source that cannot be read beyond a fault of its form."""
    try:
        for where, record in records:
            number = _line_number(where)
            try:
                text = texts.parse_text(record, where)
            except DataError as problem:
                findings.add_error(name, problem)
                continue
            repaired = _accept(text, name, number, findings, seen_texts, keep_empty)
            if repaired is not None:
                if on_text is not None:
                    on_text(name, number, repaired)
                yield json.dumps(texts.to_record(repaired), ensure_ascii=False)
    except DataError as problem:
        findings.add_error(name, problem)


def _line_number(where: str) -> int | None:
    digits = where.rpartition(":")[2].removeprefix(" row ")
    return int(digits) if digits.isdecimal() else None


def _load_json(line: str, name: str, number: int, findings: Findings) -> Any:
    """JSON value of a line; `repair_text` reports control characters in its strings."""
    where = f"{name}:{number}"
    try:
        return texts.parse_json(line, where)
    except DataError as problem:
        if problem.code != "control-character":
            raise
        return texts.parse_json(json.dumps(json.JSONDecoder(strict=False).decode(line)), where)


def _has_control_characters(line: str) -> bool:
    """Whether a line has control characters, which JSON does not allow in a string."""
    return any(letter < " " and letter != "\t" for letter in line)


def _accept(text: Text, name: str, number: int | None, findings: Findings, seen_texts: SeenTexts, keep_empty: bool) -> Text | None:
    """The repaired text, or None if its line is to be dropped."""
    if text.id in seen_texts.ids:
        findings.add(name, number, "duplicate-id", f"{text.id!r} occurs on an earlier line too")
        return None
    if not text.content and not keep_empty:
        findings.add(name, number, "empty-text", f"{text.id!r} has no text")
        return None
    seen_texts.ids.add(text.id)
    location = (name, number)
    title, body = repair_text(text.title, location, findings), repair_text(text.text, location, findings)
    repaired = text if (title, body) == (text.title, text.text) else replace(text, title=title, text=body)
    fingerprint = seen_texts.fingerprint(repaired.content)
    if fingerprint in seen_texts.fingerprints and repaired.content:
        findings.add(name, number, "duplicate-text", f"{text.id!r} has the text of an earlier line")
    seen_texts.fingerprints.add(fingerprint)
    if (query := seen_texts.queries.get(seen_texts.fingerprint(repaired.text), seen_texts.queries.get(fingerprint))) is not None:
        findings.add(name, number, "query-in-corpus", f"document {text.id!r} is the text of query {query!r}")
    return repaired


def _format_line(record: dict[str, Any], repaired: Text, text: Text, names: list[str]) -> str:
    """Line of a record with the repaired text instead of the old one."""
    changed = {text.text: repaired.text, text.title: repaired.title}
    new_record = {key: changed.get(value, value) if isinstance(value, str) else value for key, value in record.items()}
    return "\t".join(new_record[key] for key in names) if names else json.dumps(new_record, ensure_ascii=False)


TEXTS_PER_BATCH = 512


class TruncationCounter:
    """Counts the texts of one file that exceed `max_tokens`; `count_tokens` includes special tokens."""

    def __init__(self, file: str, max_tokens: int, count_tokens: Callable[[Sequence[str]], list[int]]) -> None:
        self.file, self.max_tokens, self._count_tokens = file, max_tokens, count_tokens
        self._pending: list[tuple[int | None, str]] = []
        self.texts = self.truncated = self.tokens = self.lost_tokens = self.longest = 0
        self._first: int | None = None

    def add(self, line: int | None, text: str) -> None:
        """Add a text."""
        self._pending.append((line, text))
        if len(self._pending) == TEXTS_PER_BATCH:
            self._count_pending()

    def _count_pending(self) -> None:
        for (line, _), size in zip(self._pending, self._count_tokens([text for _, text in self._pending]), strict=True):
            self.texts += 1
            self.tokens += size
            self.longest = max(self.longest, size)
            if size > self.max_tokens:
                self.truncated += 1
                self.lost_tokens += size - self.max_tokens
                self._first = self._first or line
        self._pending.clear()

    def report(self, findings: Findings) -> None:
        """Add a finding if a text is truncated."""
        if self._pending:
            self._count_pending()
        if self.truncated:
            message = f"{self.truncated:,} of {self.texts:,} texts ({self.truncated / self.texts:.1%}) are cut at {self.max_tokens} tokens"
            message += f", the longest has {self.longest:,}; {self.lost_tokens / self.tokens:.1%} of all tokens are lost"
            findings.add(self.file, self._first, "truncated", message)
