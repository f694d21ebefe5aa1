"""Findings of data checks: a count of each kind of fault and its first few lines, so that memory does not grow with the faults."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from moeir.errors import DataError
from moeir.parsing import escape_controls, shorten_message
from moeir.records import lines

FAULT_KINDS = {  # and what to do
    "faulty-file": "check the path, or fetch the file again",
    "faulty-line": "repair or delete the line",
    "not-utf8": "convert the file to UTF-8",
    "control-character": "remove it",
    "mojibake": "the text was decoded with another encoding than its own, as Windows-1252 for UTF-8; decode it again",
    "duplicate": "keep one of them",
    "empty-text": "give it a text or delete it; --keep-empty keeps a document",
    "duplicate-text": "one of them may be judged and the other not, which distorts evaluation",
    "query-in-corpus": "leave the document out when its query is evaluated, or --allow query-in-corpus",
    "grades-disagree": "decide which is right",
    "unknown-query": "remove the line, or name the file that has the query",
    "unknown-document": "remove it, or name the corpus that has the document",
    "no-relevant": "every measure of the query is 0; remove its lines or judge more documents",
    "unjudged-query": "evaluation leaves it out",
    "positive-among-negatives": "it is the positive under another id: take it out of the negatives",
    "leaked-query": "remove it from training: it is a dev query",
    "rank-order": "moeir and trec_eval order by score; moeir convert --to run sorts and numbers by it",
    "query-without-hits": "it scores 0 in every measure",
}
NOTES = {"duplicate-text", "no-relevant", "unjudged-query", "query-without-hits"}  # kinds that are no faults


@dataclass
class FindingGroup:
    """Findings of one kind in one file; `lines` are the first ones, the location of each with its message."""

    file: str
    kind: str
    note: bool
    count: int = 0
    lines: list[tuple[str, str]] = field(default_factory=list)


class Findings:
    """Findings by file and kind, with at most `max_lines` lines of each, 0 for all; `allowed` kinds become notes."""

    def __init__(self, max_lines: int = 5, allowed: Collection[str] = ()) -> None:
        self._max_lines, self._notes = max_lines, NOTES.union(allowed)
        self.groups: dict[tuple[str, str], FindingGroup] = {}  # in the order of their first findings

    def add(self, file: str, where: str, kind: str, message: str) -> None:
        """Add a finding; `where` is `file:line`, or the file if it concerns no single line."""
        group = self.groups.setdefault((file, kind), FindingGroup(file, kind, kind in self._notes))
        group.count += 1
        if not self._max_lines or len(group.lines) < self._max_lines:
            group.lines.append((where, escape_controls(shorten_message(message))))

    @property
    def fault_count(self) -> int:
        """Number of findings that are faults, not notes."""
        return sum(group.count for group in self.groups.values() if not group.note)

    def summary(self) -> str:
        """Number of faults, and their files and kinds.

        >>> findings = Findings(); findings.add("dev.tsv", "dev.tsv:3", "faulty-line", "grade is 1.5"); findings.summary()
        '1 fault in dev.tsv (faulty-line 1)'
        """
        counts, files = Counter[str](), dict[str, None]()
        for group in self.groups.values():
            if not group.note:
                counts[group.kind] += group.count
                files[group.file] = None
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in counts.items())
        return f"{counts.total():,} fault{'s' * (counts.total() != 1)} in {', '.join(files)} ({kinds})"

    def to_records(self) -> list[dict[str, Any]]:
        """Plain values for JSON, one record per file and kind."""
        return [asdict(group) | {"advice": FAULT_KINDS[group.kind]} for group in self.groups.values()]

    def text_lines(self) -> Iterator[str]:
        """Text lines for people, a paragraph per file and kind."""
        for group in self.groups.values():
            yield f"{group.file}: {group.kind}, {group.count:,}{' (note)' * group.note}: {FAULT_KINDS[group.kind]}"
            yield from (f"    {where}: {message}" for where, message in group.lines)
            if more := group.count - len(group.lines):
                yield f"    and {more:,} more"


@dataclass(frozen=True)
class FileFindings:
    """The findings of one file, and the queries and documents that it may refer to, each with its fingerprint; None if unknown."""

    findings: Findings
    path: Path | str
    queries: Mapping[str, int] | None = None
    documents: Mapping[str, int] | None = None

    @cached_property
    def name(self) -> str:
        """The file's name in messages."""
        return lines.source_name(self.path)

    def add(self, where: str, kind: str, message: str) -> None:
        """Add a finding."""
        self.findings.add(self.name, where, kind, message)

    def add_error(self, problem: DataError) -> None:
        """Add a reader's error as a finding at the location with which it begins."""
        where, _, message = str(problem).partition(": ")
        self.add(where, "faulty-file" if where == self.name else "faulty-line", message)

    def check_references(self, where: str, query: str, *documents: str) -> None:
        """Add a finding if the query or a document of a line is unknown; a document whose passages are in the corpus is not."""
        if self.queries is not None and query not in self.queries:
            self.add(where, "unknown-query", f"query {query!r} is not among the queries")
        corpus = self.documents
        unknown = [] if corpus is None else [name for name in documents if name not in corpus and f"{name}#0" not in corpus]
        if unknown:
            more = f" (and {len(unknown) - 1} more)" if len(unknown) > 1 else ""
            self.add(where, "unknown-document", f"document {unknown[0]!r}{more} of query {query!r} is not in the corpus")

    def add_absent_queries(self, present: Collection[str], kind: str, problem: str) -> None:
        """Add a finding if known queries are not in the file."""
        queries = self.queries or ()
        if absent := [query for query in queries if query not in present]:
            self.add(self.name, kind, f"{len(absent):,} of {len(queries):,} queries {problem}, such as {min(absent)!r}")
