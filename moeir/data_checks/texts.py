"""Checks of corpora and queries: faulty lines, repeated ids and texts, queries that are documents, and how many texts and tokens are lost
to truncation; checks of the ids of encodings.
"""

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from moeir import data_sources
from moeir.data_checks.findings import FileFindings, Findings
from moeir.data_checks.tolerant_lines import read_tolerantly, repair_text
from moeir.data_checks.truncation import count_truncation, describe_truncation
from moeir.errors import DataError
from moeir.records import dpr, lines, texts
from moeir.records.texts import Text


@dataclass
class SeenTexts:
    """Ids and fingerprints of texts, and by id those that several have. `queries` maps fingerprints of queries, which no document should
    have, to ids."""

    ids: set[str] = field(default_factory=set)
    fingerprints: dict[int, str] = field(default_factory=dict)
    twins: dict[str, int] = field(default_factory=dict)
    queries: dict[int, str] = field(default_factory=dict)


def fingerprint(text: str) -> int:
    """64-bit hash of a text, regardless of case and white space."""
    return hash(" ".join(text.lower().split()))


@dataclass(frozen=True)
class TextChecker:
    """Check of one file of texts; adds every id and text to `seen_texts` and calls `on_text(line, text)` for each."""

    file: FileFindings
    seen_texts: SeenTexts
    on_text: Callable[[int | None, Text], None] | None = None
    keep_empty: bool = False

    def readable_lines(self) -> Iterator[str]:
        """Lines of a repaired copy.

        Sources that are not lines (DPR's array, `hf:`, `irds:`, `TEXTS#QRELS`) are checked as far as they can be read.
        """
        source, name = str(self.file.path), self.file.name
        if data_sources.is_remote(source) or data_sources.split_judged(source)[1] is not None:
            yield from self._check_records(texts.read_records(source))
            return
        numbered_lines = read_tolerantly(self.file)
        first = next(numbered_lines, None)
        if first is None:
            return
        kind = texts.detect_form(source, first[1])
        if kind in ("array", "answers"):
            read = dpr.read_question_rows if kind == "answers" else dpr.read_questions
            yield from self._check_records(read(name, chain([first], numbered_lines)))
            return
        names, has_header = list[str](), False
        located: Iterator[tuple[str, Any]] = ((f"{name}:{number}", line) for number, line in chain([first], numbered_lines))
        try:
            if kind == "tabs":
                names, has_header, located = texts.read_text_rows(name, first, numbered_lines)
            if has_header:
                yield first[1]
            for where, content in located:
                try:
                    record = texts.parse_row(content, names, where) if names else _load_json(content, where)
                    text = texts.parse_text(record, where)
                except DataError as problem:
                    self.file.add_error(problem)
                    continue
                if (repaired := self._repair(text, _line_number(where))) is not None:
                    is_same = not names and repaired is text and not _has_control_characters(content)
                    yield content if is_same else _format_line(record, repaired, text, names, has_header)
        except DataError as problem:  # of a table that cannot be read beyond a mark that is not closed
            self.file.add_error(problem)

    def _check_records(self, records: Iterator[tuple[str, Any]]) -> Iterator[str]:
        """Check records of a source that cannot be read beyond a fault of its form."""
        try:
            for where, record in records:
                try:
                    text = texts.parse_text(record, where)
                except DataError as problem:
                    self.file.add_error(problem)
                    continue
                if (repaired := self._repair(text, _line_number(where))) is not None:
                    yield json.dumps(texts.to_record(repaired), ensure_ascii=False)
        except DataError as problem:
            self.file.add_error(problem)

    def _repair(self, text: Text, number: int | None) -> Text | None:
        """The repaired text, or None if its line is to be dropped."""
        seen_texts = self.seen_texts
        if text.id in seen_texts.ids:
            self.file.add(number, "duplicate-id", f"{text.id!r} occurs on an earlier line too")
            return None
        if not text.content and not self.keep_empty:
            self.file.add(number, "empty-text", f"{text.id!r} has no text")
            return None
        seen_texts.ids.add(text.id)
        title, body = repair_text(text.title, number, self.file), repair_text(text.text, number, self.file)
        repaired = text if (title, body) == (text.title, text.text) else replace(text, title=title, text=body)
        key = fingerprint(repaired.content)
        if key in seen_texts.fingerprints and repaired.content:
            self.file.add(number, "duplicate-text", f"{text.id!r} has the text of an earlier line")
            seen_texts.twins |= {text.id: key, seen_texts.fingerprints[key]: key}
        seen_texts.fingerprints.setdefault(key, text.id)
        if (query := seen_texts.queries.get(fingerprint(repaired.text), seen_texts.queries.get(key))) is not None:
            self.file.add(number, "query-in-corpus", f"document {text.id!r} is the text of query {query!r}")
        if self.on_text is not None:
            self.on_text(number, repaired)
        return repaired


def _line_number(where: str) -> int | None:
    digits = where.rpartition(":")[2].removeprefix(" row ")
    return int(digits) if digits.isdecimal() else None


def _load_json(line: str, where: str) -> Any:
    """JSON value of a line; `repair_text` reports control characters in its strings."""
    try:
        return texts.parse_json(line, where)
    except DataError as problem:
        if problem.code != "control-character":
            raise
        try:
            without_controls = json.dumps(json.JSONDecoder(strict=False).decode(line))
        except (ValueError, RecursionError):
            raise problem from None
        return texts.parse_json(without_controls, where)


def _has_control_characters(line: str) -> bool:
    """Whether a line has control characters, which JSON does not allow in a string."""
    return any(letter < " " and letter != "\t" for letter in line)


def _format_line(record: dict[str, Any], repaired: Text, text: Text, names: list[str], has_header: bool) -> str:
    changed = {text.text: repaired.text, text.title: repaired.title}
    new_record = {key: changed.get(value, value) if isinstance(value, str) else value for key, value in record.items()}
    if has_header:
        return lines.format_csv(new_record.values())
    return "\t".join(new_record[key] for key in names) if names else json.dumps(new_record, ensure_ascii=False)


def check_encoded_ids(file: str, ids: Sequence[str], findings: Findings, documents: Collection[str] | None) -> None:
    """Check the ids of encodings: each once, and equal to those of the corpus if they are known."""
    seen: set[str] = set()
    for number, document in enumerate(ids, 1):
        if document in seen:
            findings.add(file, number, "duplicate-id", f"{document!r} occurs on an earlier line too")
        elif documents is not None and document not in documents:
            findings.add(file, number, "unknown-document", f"{document!r} is not in the corpus")
        seen.add(document)
    for document in sorted(set(documents or ()) - seen):
        findings.add(file, None, "missing-document", f"{document!r} of the corpus is not encoded")


TEXTS_PER_BATCH = 512


class TruncationCounter:
    """Counts the texts of one file that exceed `max_tokens`; `count_tokens` includes special tokens."""

    def __init__(self, file: str, max_tokens: int, count_tokens: Callable[[Sequence[str]], list[int]]) -> None:
        self.file, self.max_tokens, self._count_tokens = file, max_tokens, count_tokens
        self._pending: list[tuple[int | None, str]] = []
        self.counts, self.longest = Counter[str](), 0
        self._first: int | None = None

    def add(self, line: int | None, text: str) -> None:
        """Add a text."""
        self._pending.append((line, text))
        if len(self._pending) == TEXTS_PER_BATCH:
            self._count_pending()

    def _count_pending(self) -> None:
        sizes = self._count_tokens([text for _, text in self._pending])
        self.counts.update(count_truncation(sizes, self.max_tokens))
        self.longest = max(self.longest, *sizes)
        self._first = self._first or next((line for (line, _), size in zip(self._pending, sizes) if size > self.max_tokens), None)
        self._pending.clear()

    def report(self, findings: Findings) -> None:
        """Add a finding if a text is truncated."""
        if self._pending:
            self._count_pending()
        if self.counts["cut"]:
            message = describe_truncation(self.counts, "texts", self.max_tokens)
            findings.add(self.file, self._first, "truncated", f"{message}; the longest has {self.longest:,}")
