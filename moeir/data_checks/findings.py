"""Kinds of faults with advice, and findings: a count of each kind and its first few lines.

Findings of data checks: a count of each kind and its first few lines, so that memory does not grow with the faults.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from moeir.errors import DataError


class FaultKind(NamedTuple):
    """A kind of fault. `message_parts` are substrings of the reader messages of this kind; a `note` is not a fault."""

    name: str
    advice: str
    message_parts: tuple[str, ...] = ()
    note: bool = False


DELETE_ADVICE = "repair or delete the line; --fix deletes it"
FAULT_KINDS = (
    FaultKind("damaged-archive", "fetch the file again", ("damaged archive", "cannot be read")),
    FaultKind("empty-file", "check the path"),
    FaultKind("not-utf8", "convert the file to UTF-8; --fix reads such lines as Windows-1252"),
    FaultKind("control-character", "remove it; --fix writes a space instead", ("Invalid control character",)),
    FaultKind("mojibake", "the text was decoded as Windows-1252 though it was UTF-8; --fix decodes it as UTF-8"),
    FaultKind("replacement-character", "the original character is lost; take the text from its source", note=True),
    FaultKind("half-character", DELETE_ADVICE, ("lone surrogate",)),
    FaultKind("broken-json", DELETE_ADVICE, ("broken JSON", " in the array, found ")),
    FaultKind("not-an-object", DELETE_ADVICE, ("a JSON object was expected", "expected a JSON object")),
    FaultKind(
        "columns", DELETE_ADVICE, ("columns between tabs", "tab-separated", "a list of answers", "query document grade", "rank score tag")
    ),
    FaultKind("no-id", DELETE_ADVICE, ("no id;", "no query_id")),
    FaultKind("id-not-a-word", DELETE_ADVICE, ("id is not a string",)),
    FaultKind("blank-id", "give the record an id; --fix deletes the line", ("id is blank",)),
    FaultKind("id-with-space", "rename it everywhere: a run has one word for an id; --fix deletes the line", ("id with white space",)),
    FaultKind("duplicate-id", "keep one of them; --fix keeps the first", ("on an earlier line too", "duplicate id", "duplicate query id")),
    FaultKind("no-text", DELETE_ADVICE, ("no text;", "no query text", "is missing or not a string")),
    FaultKind("text-not-a-string", DELETE_ADVICE, (" is not a string: ", "answers is not a list")),
    FaultKind("empty-text", "give it a text, or delete it as --fix does, or keep it with --keep-empty", ("is empty; --keep-empty",)),
    FaultKind("duplicate-text", "one of them may be judged and the other not, which distorts evaluation", note=True),
    FaultKind("query-in-corpus", "leave the document out when its query is evaluated, or --allow query-in-corpus"),
    FaultKind("two-texts", "different texts need other ids; --fix deletes the line", ("has two texts",)),
    FaultKind("grade-not-a-number", DELETE_ADVICE, ("grade is not a number",)),
    FaultKind("grade-not-whole", "write a whole number; --fix deletes the line", ("grade is not a whole number",)),
    FaultKind("duplicate-judgement", "keep one of them; --fix keeps the first"),
    FaultKind("grades-disagree", "decide which is right; --fix keeps the first"),
    FaultKind("unknown-query", "remove the line, as --fix does, or name the file that has the query"),
    FaultKind("unknown-document", "remove it, as --fix does, or name the corpus that has the document"),
    FaultKind("no-relevant", "every measure of the query is 0; remove its lines or judge more documents", note=True),
    FaultKind("unjudged-query", "evaluation leaves it out", note=True),
    FaultKind("not-a-list", DELETE_ADVICE, (" is not a list",)),
    FaultKind("no-negatives", DELETE_ADVICE, ("no negatives;", "no negative_passages", "no negative_scores")),
    FaultKind("no-positive", "training learns nothing of it; --fix deletes the line", ("has no positive", "no positives;", "no positive_")),
    FaultKind("positive-among-negatives", "take it out of the negatives, as --fix does", ("is a positive and a negative",)),
    FaultKind("duplicate-passage", "name it once, as --fix does", (" twice in positive", " twice in negative")),
    FaultKind("scores-miscounted", "write one score for each document; --fix deletes the line", ("_scores has",)),
    FaultKind(
        "score-not-finite", "fix the program that wrote it; --fix deletes the line", ("score is not finite", "expected finite numbers")
    ),
    FaultKind("provenance", DELETE_ADVICE, ("negative_provenance",)),
    FaultKind("leaked-query", "remove it from training, as --fix does: it is a dev query"),
    FaultKind("score-not-a-number", DELETE_ADVICE, ("score is not a number",)),
    FaultKind("rank-not-a-number", "write whole numbers from 1; --fix renumbers by score"),
    FaultKind("rank-order", "number each list from 1, best first; --fix renumbers by score"),
    FaultKind("unsorted", "sort each list by score, as --fix does"),
    FaultKind("duplicate-document", "keep one; --fix keeps the higher score"),
    FaultKind("query-in-parts", "keep the lines of a query together, as --fix does"),
    FaultKind("ties", "tools order them differently; moeir takes the larger id first, as trec_eval", note=True),
    FaultKind("several-tags", "moeir keeps the first tag", note=True),
    FaultKind("query-without-hits", "it scores 0 in every measure", note=True),
    FaultKind("truncated", "encode with a longer --document-length or --query-length, or cut texts into passages", note=True),
    FaultKind("not-finite", "encode again; if it recurs, the weights are damaged"),
    FaultKind("zero-vector", "its score is 0 for every query; check the text"),
    FaultKind("no-terms", "its score is 0 for every query; check the text, or keep more terms"),
    FaultKind(
        "collapsed", "the expert maps all texts to nearly the same vector: train it again with another learning rate or other negatives"
    ),
    FaultKind("duplicate-vector", "equal texts have equal vectors; check the corpus for them", note=True),
    FaultKind("missing-document", "encode the corpus again"),
    FaultKind("other-order", "fine for search; another corpus, or another version of it, was encoded", note=True),
    FaultKind("faulty-line", DELETE_ADVICE),
)
KINDS_BY_NAME = {kind.name: kind for kind in FAULT_KINDS}


def classify_message(message: str) -> str:
    """Kind of fault of a reader's error message.

    >>> classify_message("dev.tsv:3: grade is not a number: 'x'")
    'grade-not-a-number'
    """
    return next((kind.name for kind in FAULT_KINDS if any(words in message for words in kind.message_parts)), "faulty-line")


_KIND_ORDER = {kind.name: index for index, kind in enumerate(FAULT_KINDS)}


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
        return KINDS_BY_NAME[self.kind].advice

    def location(self, line: int | None) -> str:
        """`file:line`, or the file if the finding concerns no single line."""
        return self.file if line is None else f"{self.file}:{line}"


class Findings:
    """Findings by file and kind, with at most `max_lines` lines of each, 0 for all; `allowed` kinds become notes."""

    def __init__(self, max_lines: int = 5, allowed: Collection[str] = ()) -> None:
        self._max_lines, self._allowed = max_lines, frozenset(allowed)
        self._groups: dict[tuple[str, str], FindingGroup] = {}
        self._files: dict[str, int] = {}

    def add(self, file: str, line: int | None, kind: str, message: str) -> None:
        """Add a finding."""
        self._files.setdefault(file, len(self._files))
        if (file, kind) not in self._groups:
            self._groups[file, kind] = FindingGroup(file, kind, KINDS_BY_NAME[kind].note or kind in self._allowed)
        group = self._groups[file, kind]
        group.count += 1
        if not self._max_lines or len(group.lines) < self._max_lines:
            group.lines.append((line, message))

    def add_error(self, file: str, line: int | None, problem: DataError) -> None:
        """Add the finding that a reader's error message describes."""
        message = str(problem)
        self.add(file, line, classify_message(message), message.removeprefix(f"{file}:{line}: ").removeprefix(f"{file}: "))

    @property
    def groups(self) -> list[FindingGroup]:
        """Groups in the order of files, then of kinds."""
        return sorted(self._groups.values(), key=lambda group: (self._files[group.file], _KIND_ORDER[group.kind]))

    @property
    def fault_count(self) -> int:
        """Number of findings that are faults, not notes."""
        return sum(group.count for group in self._groups.values() if not group.note)

    def summary(self) -> str:
        """Number of faults, and their files and kinds.

        >>> findings = Findings(); findings.add("dev.tsv", 3, "grade-not-whole", "grade is 1.5"); findings.summary()
        '1 fault in dev.tsv (grade-not-whole 1)'
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
