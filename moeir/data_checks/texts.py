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
from moeir.data_checks.tolerant_lines import line_number, parse_content, read_tolerantly, repair_record, repair_text
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

    def copied_lines(self) -> Iterator[str]:
        """Lines of a repaired copy: all but those with the id of an earlier one, with repaired texts and titles.

        Sources that are not lines (DPR's questions, `hf:`, `irds:`, `TEXTS#QRELS`) are checked as far as they can be read.
        """
        source, name = str(self.file.path), self.file.name
        names, has_header = list[str](), False
        located: Iterator[tuple[str, Any]]  # the line, the columns of a row, or the record at each place
        try:
            if data_sources.is_remote(source) or data_sources.split_judged(source)[1] is not None:
                located = texts.read_records(source)
            else:
                numbered_lines = read_tolerantly(self.file)
                if (first := next(numbered_lines, None)) is None:
                    return
                kind, all_lines = texts.detect_form(source, first[1]), chain([first], numbered_lines)
                if kind == "json":
                    located = ((f"{name}:{number}", line) for number, line in all_lines)
                elif kind == "tabs":
                    names, has_header, located = texts.read_text_rows(name, first, numbered_lines)
                    if has_header:
                        yield first[1]
                else:
                    self.file.refuse_copy("its questions have no lines of ids and texts; moeir convert --to texts writes them")
                    located = (dpr.read_question_rows if kind == "answers" else dpr.read_questions)(name, all_lines)
            for where, content in located:
                copied = self._check_content(content, where, names)
                if isinstance(copied, list):
                    yield lines.format_csv(copied) if has_header else "\t".join(copied)
                elif isinstance(copied, str):
                    yield copied
        except DataError as problem:  # of a form beyond whose fault nothing can be read, such as a mark that is not closed
            self.file.refuse_copy(problem)
            self.file.add_error(problem)

    def _check_content(self, content: Any, where: str, names: list[str]) -> Any:
        """A line or columns, repaired; None if an earlier one has the id."""
        number = line_number(where)
        try:
            content, record = (content, texts.parse_row(content, names, where)) if names else parse_content(content, where, self.file)
            text = texts.parse_text(record, where)
        except DataError as problem:
            self.file.add_error(problem)
            return content
        if text.id in self.seen_texts.ids:
            self.file.add(number, "duplicate-id", f"{text.id!r} occurs on an earlier line too")
            return None
        if self._check_text(text, number):
            return content
        repaired = repair_record(record)
        return list(repaired.values()) if names else json.dumps(repaired, ensure_ascii=False)

    def _check_text(self, text: Text, number: int | None) -> bool:
        """Check a text; whether its characters need no repair."""
        seen_texts = self.seen_texts
        seen_texts.ids.add(text.id)
        if not text.content:
            if not self.keep_empty:
                self.file.add(number, "empty-text", f"{text.id!r} has no text")
            return True
        title, body = repair_text(text.title, number, self.file), repair_text(text.text, number, self.file)
        repaired = replace(text, title=title, text=body)
        key = fingerprint(repaired.content)
        if key in seen_texts.fingerprints:
            self.file.add(number, "duplicate-text", f"{text.id!r} has the text of an earlier line")
            seen_texts.twins |= {text.id: key, seen_texts.fingerprints[key]: key}
        seen_texts.fingerprints.setdefault(key, text.id)
        if (query := seen_texts.queries.get(fingerprint(repaired.text), seen_texts.queries.get(key))) is not None:
            self.file.add(number, "query-in-corpus", f"document {text.id!r} is the text of query {query!r}")
        if self.on_text is not None:
            self.on_text(number, repaired)
        return repaired == text


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
