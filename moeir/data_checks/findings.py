"""Findings of data checks: a count of each kind of fault and its first few lines, so that memory does not grow with the faults."""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from moeir.errors import DataError, UsageError
from moeir.parsing import escape_controls, shorten_message
from moeir.records import lines


class FaultKind(NamedTuple):
    """A kind of fault of data; a `note` is not a fault."""

    advice: str
    note: bool = False


FAULT_KINDS = {
    "faulty-file": FaultKind("check the path, or fetch the file again"),
    "faulty-line": FaultKind("repair or delete the line"),
    "not-utf8": FaultKind("convert the file to UTF-8; --fix reads such lines as Windows-1252"),
    "control-character": FaultKind("remove it; --fix writes a space instead"),
    "mojibake": FaultKind("the text was decoded with another encoding than its own, as Windows-1252 for UTF-8; --fix decodes it again"),
    "duplicate": FaultKind("keep one of them; --fix keeps the first"),
    "empty-text": FaultKind("give it a text or delete it, or keep it with --keep-empty"),
    "duplicate-text": FaultKind("one of them may be judged and the other not, which distorts evaluation", note=True),
    "query-in-corpus": FaultKind("leave the document out when its query is evaluated, or --allow query-in-corpus"),
    "grades-disagree": FaultKind("decide which is right"),
    "unknown-query": FaultKind("remove the line, or name the file that has the query"),
    "unknown-document": FaultKind("remove it, or name the corpus that has the document"),
    "no-relevant": FaultKind("every measure of the query is 0; remove its lines or judge more documents", note=True),
    "unjudged-query": FaultKind("evaluation leaves it out", note=True),
    "positive-among-negatives": FaultKind("it is the positive under another id: take it out of the negatives"),
    "leaked-query": FaultKind("remove it from training: it is a dev query"),
    "rank-order": FaultKind("moeir and trec_eval order by score; moeir convert --to run sorts and numbers by it"),
    "query-without-hits": FaultKind("it scores 0 in every measure", note=True),
    "not-finite": FaultKind("encode again; if it recurs, the weights are damaged"),
    "zero-vector": FaultKind("its score is 0 for every query; check the text"),
    "no-terms": FaultKind("its score is 0 for every query; check the text, or keep more terms"),
    "collapsed": FaultKind(
        "the expert maps all texts to nearly the same vector: train it again with another learning rate or other negatives"
    ),
    "duplicate-vector": FaultKind("equal texts have equal vectors; check the corpus for them", note=True),
    "missing-document": FaultKind("encode the corpus again"),
}


@dataclass
class FindingGroup:
    """Findings of one kind in one file; `lines` are the first ones, each with its message."""

    file: str
    kind: str
    note: bool
    count: int = 0
    lines: list[tuple[int | None, str]] = field(default_factory=list)

    @property
    def advice(self) -> str:
        return FAULT_KINDS[self.kind].advice

    def location(self, line: int | None) -> str:
        """`file:line`, or the file if the finding concerns no single line."""
        return self.file if line is None else f"{self.file}:{line}"


class Findings:
    """Findings by file and kind, with at most `max_lines` lines of each, 0 for all; `allowed` kinds become notes.

    `copying` says that repaired copies of the files are written.
    """

    def __init__(self, max_lines: int = 5, allowed: Collection[str] = (), *, copying: bool = False) -> None:
        self._max_lines, self._allowed, self.copying = max_lines, frozenset(allowed), copying
        self._groups: dict[tuple[str, str], FindingGroup] = {}

    def add(self, file: str, line: int | None, kind: str, message: str) -> None:
        """Add a finding."""
        is_note = FAULT_KINDS[kind].note or kind in self._allowed
        group = self._groups.setdefault((file, kind), FindingGroup(file, kind, is_note))
        group.count += 1
        if not self._max_lines or len(group.lines) < self._max_lines:
            group.lines.append((line, escape_controls(shorten_message(message))))

    def add_error(self, file: str, problem: DataError) -> None:
        """Add a reader's error as a finding, at the line that the message names."""
        message = str(problem).removeprefix(file)
        number = re.match(r":(\d+): |.*?: row (\d+)[:,]", message)
        line = int(number[1] or number[2]) if number else None
        self.add(file, line, "faulty-line" if line else "faulty-file", re.sub(r"^:(\d+:)? ", "", message))

    def add_row_fault(self, file: str, ids: Sequence[str], row: int | None, kind: str, message: str) -> None:
        """Add a fault that `Representation.check_rows` reports about one text of encodings, or about all if `row` is None."""
        self.add(file, None if row is None else row + 1, kind, message if row is None else f"text {ids[row]!r}: {message}")

    @property
    def groups(self) -> list[FindingGroup]:
        """Groups in the order of their first findings."""
        return list(self._groups.values())

    @property
    def fault_count(self) -> int:
        """Number of findings that are faults, not notes."""
        return sum(group.count for group in self._groups.values() if not group.note)

    def summary(self) -> str:
        """Number of faults, and their files and kinds.

        >>> findings = Findings(); findings.add("dev.tsv", 3, "faulty-line", "grade is 1.5"); findings.summary()
        '1 fault in dev.tsv (faulty-line 1)'
        """
        faulty = [group for group in self.groups if not group.note]
        files = list(dict.fromkeys(group.file for group in faulty))
        counts: dict[str, int] = {}
        for group in faulty:
            counts[group.kind] = counts.get(group.kind, 0) + group.count
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in counts.items())
        location = files[0] if len(files) == 1 else f"{len(files)} files"
        return f"{self.fault_count:,} fault{'s' * (self.fault_count != 1)} in {location} ({kinds})"

    def rows(self) -> Iterator[tuple[str, str, str, str]]:
        """Rows (`file:line`, kind, message, advice); the last row of a group may count further findings."""
        for group in self.groups:
            for line, message in group.lines:
                yield group.location(line), group.kind, message, group.advice
            if more := group.count - len(group.lines):
                yield group.file, group.kind, f"and {more:,} more", group.advice

    def to_records(self) -> list[dict[str, Any]]:
        """Plain values for JSON, one record per file and kind."""
        return [
            {
                "file": group.file,
                "kind": group.kind,
                "fault": not group.note,
                "count": group.count,
                "advice": group.advice,
                "lines": [{"line": line, "what": message} for line, message in group.lines],
            }
            for group in self.groups
        ]

    def text_lines(self) -> Iterator[str]:
        """Text lines for people, a paragraph per file and kind."""
        for group in self.groups:
            yield f"{group.file}: {group.kind}, {group.count:,}{' (note)' * group.note}: {group.advice}"
            yield from (f"    {group.location(line)}: {message}" for line, message in group.lines)
            if more := group.count - len(group.lines):
                yield f"    and {more:,} more"


@dataclass(frozen=True)
class FileFindings:
    """The findings of one file, and the ids of queries and documents that it may refer to; None if unknown."""

    findings: Findings
    path: Path | str
    queries: Collection[str] | None = None
    documents: Collection[str] | None = None

    @cached_property
    def name(self) -> str:
        """The file's name in messages."""
        return lines.source_name(self.path)

    def add(self, line: int | None, kind: str, message: str) -> None:
        """Add a finding."""
        self.findings.add(self.name, line, kind, message)

    def add_error(self, problem: DataError) -> None:
        """Add a reader's error as a finding."""
        self.findings.add_error(self.name, problem)

    def refuse_copy(self, reason: object) -> None:
        """UsageError if repaired copies are written and this file cannot have one."""
        if self.findings.copying:
            raise UsageError(f"--fix: {self.name} cannot be copied: {str(reason).removeprefix(f'{self.name}: ')}")

    def check_references(self, line: int, query: str, document: str) -> None:
        """Add a finding if the query or the document of a line is unknown."""
        if self.queries is not None and query not in self.queries:
            self.add(line, "unknown-query", f"query {query!r} is not among the queries")
        elif self.documents is not None and document not in self.documents:
            self.add(line, "unknown-document", f"document {document!r} of query {query!r} is not in the corpus")

    def add_absent_queries(self, present: Collection[str], kind: str, problem: str) -> None:
        """Add a finding if known queries are not in the file."""
        queries = self.queries or ()
        if absent := [query for query in queries if query not in present]:
            self.add(None, kind, f"{len(absent):,} of {len(queries):,} queries {problem}, such as {min(absent)!r}")
