"""Checks of corpora and queries: faulty lines, repeated ids and texts, queries that are documents; checks of the ids of encodings."""

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from moeir import data_sources
from moeir.data_checks.findings import FileFindings, Findings
from moeir.data_checks.tolerant_lines import line_number, parse_tolerantly, read_tolerantly, repair_record
from moeir.errors import DataError
from moeir.records import lines, texts
from moeir.records.texts import TextForm


@dataclass
class SeenTexts:
    """The fingerprint of each text by its id, and the id of the first text with a fingerprint."""

    by_id: dict[str, int] = field(default_factory=dict)
    by_text: dict[int, str] = field(default_factory=dict)


def fingerprint(text: str) -> int:
    """64-bit hash of a text, regardless of case and white space."""
    return hash(" ".join(text.lower().split()))


@dataclass(frozen=True)
class TextChecker:
    """Check of one file of texts; adds every text to `seen`, and looks for documents among the `queries`."""

    file: FileFindings
    seen: SeenTexts
    queries: SeenTexts = field(default_factory=SeenTexts)
    keep_empty: bool = False

    def copied_lines(self) -> Iterator[str]:
        """Lines of a repaired copy: all but those with the id of an earlier one, with repaired texts and titles.

        Sources that are not lines (DPR's questions, `hf:`, `irds:`, `TEXTS#QRELS`) are checked as far as they can be read.
        """
        source = str(self.file.path)
        try:
            if data_sources.is_remote(source) or data_sources.split_judged(source)[1] is not None:
                form, contents = TextForm("rows"), texts.read_records(source)
            else:
                form, contents = texts.split_records(source, read_tolerantly(self.file))
            if form.kind in ("array", "answers"):
                self.file.refuse_copy("its questions have no lines of ids and texts; moeir convert --to texts writes them")
            if form.header:
                yield form.header
            for where, content in contents:
                copied = self._check_content(content, where, form)
                if isinstance(copied, list):
                    yield lines.format_csv(copied) if form.header else "\t".join(copied)
                elif copied is not None:
                    yield copied if isinstance(copied, str) else json.dumps(copied, ensure_ascii=False)
        except DataError as problem:  # of a form beyond whose fault nothing can be read, such as a mark that is not closed
            self.file.refuse_copy(problem)
            self.file.add_error(problem)

    def _check_content(self, content: Any, where: str, form: TextForm) -> Any:
        """A line, columns or record, repaired; None if an earlier one has the id."""
        number = line_number(where)
        try:
            content, record = parse_tolerantly(content, where, self.file, form.parse)
            repaired = repair_record(record, number, self.file)
            text = texts.parse_text(repaired, where)
        except DataError as problem:
            self.file.add_error(problem)
            return content
        if text.id in self.seen.by_id:
            self.file.add(number, "duplicate", f"{text.id!r} occurs on an earlier line too")
            return None
        key = self.seen.by_id[text.id] = fingerprint(text.content)
        if not text.content:
            if not self.keep_empty:
                self.file.add(number, "empty-text", f"{text.id!r} has no text")
        elif self.seen.by_text.setdefault(key, text.id) != text.id:
            self.file.add(number, "duplicate-text", f"{text.id!r} has the text of an earlier line")
        if (query := self.queries.by_text.get(fingerprint(text.text), self.queries.by_text.get(key))) is not None:
            self.file.add(number, "query-in-corpus", f"document {text.id!r} is the text of query {query!r}")
        if repaired == record:
            return content
        return list(repaired.values()) if form.names else repaired


def check_encoded_ids(file: str, ids: Sequence[str], findings: Findings, documents: Collection[str] | None) -> None:
    """Check the ids of encodings: each once, and equal to those of the corpus if they are known."""
    seen: set[str] = set()
    for number, document in enumerate(ids, 1):
        if document in seen:
            findings.add(file, number, "duplicate", f"{document!r} occurs on an earlier line too")
        elif documents is not None and document not in documents:
            findings.add(file, number, "unknown-document", f"{document!r} is not in the corpus")
        seen.add(document)
    for document in sorted(set(documents or ()) - seen):
        findings.add(file, None, "missing-document", f"{document!r} of the corpus is not encoded")
