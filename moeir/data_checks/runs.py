"""Checks of runs: faulty lines, and for each list its ranks, order, ties and repeated documents."""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from moeir.data_checks.findings import FileFindings
from moeir.data_checks.tolerant_lines import read_tolerantly
from moeir.errors import DataError
from moeir.records import runs
from moeir.records.ids import parse_id


@dataclass
class _QueryList:
    """Contiguous hits of a query: line, rank (-1 if invalid) and score of each, and the number of repeated ones, which are left out."""

    query: str
    lines: list[int] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    documents: set[int] = field(default_factory=set)
    repeated: int = 0
    follows_fault: bool = False


class RunChecker:
    """Check of one run."""

    def __init__(self, file: FileFindings) -> None:
        self._file = file
        self._document_codes: dict[str, int] = {}  # by document, so that a list takes four bytes per hit
        self._lists: dict[str, array[int]] = {}
        self._tags: set[str] = set()
        self._last_fault_line = 0  # the last line that is no hit

    def copied_lines(self) -> Iterator[str]:
        """Lines of a repaired copy: all but those with a document of an earlier line of the query's list, whose ranks close up."""
        current: _QueryList | None = None
        for number, line in read_tolerantly(self._file):
            hit = self._parse(line, number)
            if hit is None:
                self._last_fault_line = number
                yield line
                continue
            query, document, rank, score = hit
            if current is None or current.query != query:
                self._finish_list(current)
                current = self._start_list(query, number)
            code = self._document_codes.setdefault(document, len(self._document_codes))
            if code in current.documents:
                self._file.add(number, "duplicate-document", f"document {document!r} occurs twice in the list of {query!r}")
                current.repeated += 1
                continue
            current.documents.add(code)
            current.lines.append(number)
            current.scores.append(score)
            current.ranks.append(self._parse_rank(rank, number))
            yield _lower_rank(line, current.repeated) if current.repeated and current.ranks[-1] > 0 else line
        self._finish_list(current)
        self._file.add_absent_queries(self._lists, "query-without-hits", "are not in the run")

    def _parse(self, line: str, number: int) -> tuple[str, str, str, float] | None:
        where = f"{self._file.name}:{number}"
        try:
            query, document, rank, score, tag = runs.parse_hit(line, where)
            for word in () if line.isprintable() else (query, document, tag):
                parse_id(word, where)
        except DataError as problem:
            self._file.add_error(problem)
            return None
        if tag not in self._tags:
            self._tags.add(tag)
            if len(self._tags) > 1:
                self._file.add(number, "several-tags", f"tag {tag!r} differs from those before")
        self._file.check_references(number, query, document)
        return query, document, rank, score

    def _parse_rank(self, word: str, number: int) -> int:
        if word.isdecimal() and len(word) <= runs.MAX_RANK_DIGITS:
            return int(word)
        self._file.add(number, "rank-not-a-number", f"rank is {word!r}")
        return -1

    def _start_list(self, query: str, number: int) -> _QueryList:
        hits = _QueryList(query, follows_fault=self._last_fault_line == number - 1)
        if query in self._lists:
            self._file.add(number, "query-in-parts", f"query {query!r} has lines before and after those of other queries")
            hits.documents = set(self._lists[query])
        return hits

    def _finish_list(self, hits: _QueryList | None) -> None:
        if hits is None:
            return
        repeated = hits.query in self._lists
        self._lists[hits.query] = array("q", hits.documents)
        ranks, scores = np.array(hits.ranks), np.array(hits.scores, dtype=np.float32)
        rises = np.flatnonzero(scores[1:] > scores[:-1])
        for row in rises[:1].tolist():
            message = f"query {hits.query!r}: score {runs.format_score(scores[row + 1])} under {runs.format_score(scores[row])}"
            self._file.add(hits.lines[row + 1], "unsorted", message)
        if not repeated and (row := _first_rank_fault(ranks, np.array(hits.lines), hits.follows_fault)) is not None:
            self._file.add(hits.lines[row], "rank-order", f"query {hits.query!r}: rank {ranks[row]} at position {row + 1}")
        ordered = np.sort(scores)
        if tied := int((ordered[1:] == ordered[:-1]).sum()):
            self._file.add(hits.lines[0], "ties", f"query {hits.query!r}: {tied} hits with the score of another")


def _first_rank_fault(ranks: NDArray[np.int64], lines: NDArray[np.int64], behind_fault: bool) -> int | None:
    """First row whose rank does not follow the previous one; a gap of as many lines that are no hits is allowed. ranks, lines [n]."""
    steps = np.diff(ranks)
    wrong = np.flatnonzero((steps != 1) & (steps != np.diff(lines)) & (ranks[1:] >= 0) & (ranks[:-1] >= 0)) + 1
    if ranks[0] not in (1, -1) and not (behind_fault and ranks[0] > 1):
        return 0
    return int(wrong[0]) if len(wrong) else None


def _lower_rank(line: str, places: int) -> str:
    """A hit with a rank that is lower by some places."""
    separator = "\t" if "\t" in line else " "
    words = line.split(None if separator == " " else separator)
    words[3] = str(int(words[3]) - places)
    return separator.join(words)
