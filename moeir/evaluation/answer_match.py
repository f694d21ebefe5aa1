"""Answer matching: a retrieved document is relevant if its text contains an answer to the question, as in DPR.

Karpukhin et al. 2020: the text counts, the title does not. Only retrieved documents are judged, so only measures that
ignore all other documents can be computed.
"""

import logging
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import regex
from ir_measures import Measure
from numpy.typing import NDArray

from moeir.errors import DataError, UsageError
from moeir.records import lines, texts
from moeir.records.qrels import Qrels
from moeir.records.runs import Run
from moeir.records.texts import Text

MATCHES = ("string", "regex")
DEFAULT_MEASURES = ("Success@20", "Success@100")
log = logging.getLogger(__name__)

_TOKENS = regex.compile(r"[\p{L}\p{N}\p{M}]+|[^\p{Z}\p{C}]")
_HUGE_REPEAT = regex.compile(r"\{\d*,?\d{5,}")  # repeat counts of 10,000 and more exhaust memory
_FLAGS = regex.IGNORECASE | regex.UNICODE | regex.MULTILINE
REGEX_TIMEOUT_SECONDS = 60
_RANK_MEASURES = ("Success", "RR", "P")


def tokenize(text: str) -> str:
    """Tokens of a text as one string with spaces around each: runs of letters, digits and marks, or single other characters.

    DPR's SimpleTokenizer: canonical decomposition (NFD), then tokens, then lower case. A token sequence contains another if
    and only if its string contains the other string.

    >>> tokenize("O'Hara, 1936")
    " o ' hara , 1936 "
    >>> tokenize("the Hara") in tokenize("O'Hara, 1936"), tokenize("hara") in tokenize("O'Hara, 1936")
    (False, True)
    """
    return f" {' '.join(_TOKENS.findall(unicodedata.normalize('NFD', text)))} ".lower()


@dataclass(frozen=True)
class Answers:
    """Compiled answers by question id; `match` is "string" or "regex"."""

    match: str
    by_question: dict[str, tuple[Any, ...]]

    def normalize(self, text: str) -> str:
        """Normalized text of a document, as `contains_answer` expects it."""
        return unicodedata.normalize("NFD", text) if self.match == "regex" else tokenize(text)

    def contains_answer(self, query: str, normalized: str) -> bool:
        """Whether the normalized text of a document contains an answer to the question."""
        if self.match == "regex":
            return any(self._search(pattern, normalized, query) for pattern in self.by_question[query])
        return any(answer in normalized for answer in self.by_question[query])

    def _search(self, pattern: Any, normalized: str, query: str) -> bool:
        try:
            return pattern.search(normalized, timeout=REGEX_TIMEOUT_SECONDS) is not None
        except TimeoutError:
            message = f"the regular expression {pattern.pattern!r} timed out after {REGEX_TIMEOUT_SECONDS} seconds on one text"
            raise DataError(f"question {query!r}: {message}; write it without nested repetitions") from None


def compile_answers(questions: Iterable[Text], match: str, source: object) -> Answers:
    """Compile the answers of every question; `source` names the file in messages.

    An answer without a token and an invalid regular expression match nothing; both are counted in a warning. (DPR does the
    same with an invalid expression, but matches an answer without a token in every document.)
    """
    by_question: dict[str, tuple[Any, ...]] = {}
    unmatchable: list[tuple[str, str]] = []
    compile_answer = _compile_pattern if match == "regex" else _compile_phrase
    for question in questions:
        if not question.answers:
            raise DataError(f"{source}: question {question.id!r} has no answers; every question needs a list of them in the field answers")
        compiled = {answer: compile_answer(answer) for answer in question.answers}
        unmatchable += [(question.id, answer) for answer, pattern in compiled.items() if pattern is None]
        by_question[question.id] = tuple(pattern for pattern in compiled.values() if pattern is not None)
    if unmatchable:
        kind = "are not valid regular expressions" if match == "regex" else "have no letter, digit or sign"
        first, answer = unmatchable[0]
        log.warning("%s: %d answers %s and match nothing; the first: %r of question %s", source, len(unmatchable), kind, answer, first)
    return Answers(match, by_question)


def max_cutoff(measures: Collection[Measure]) -> int | None:
    """Largest cutoff of these measures, None if one has no cutoff; UsageError for a measure that answers do not support."""
    for measure in measures:
        if measure.NAME not in _RANK_MEASURES or measure.params.get("rel", 1) != 1 or measure.params.get("judged_only"):
            reason = "which judge only what was retrieved, as 0 or 1; Success@20, RR@10 and P@5 can"
            raise UsageError(f"measure {measure} cannot be computed from answers, {reason}")
    cutoffs: list[Any] = [measure.params.get("cutoff") for measure in measures]
    return None if None in cutoffs else int(max(cutoffs))


def qrels_from_answers(runs: Sequence[Run], answers: Answers, corpus: Path) -> list[Qrels]:
    """Qrels of the retrieved documents of each run: 1 if the text contains an answer, else 0; every question has an entry."""
    all_qrels = []
    for run, labels in zip(runs, hit_labels(runs, answers, corpus), strict=True):
        qrels: Qrels = {query: {} for query in answers.by_question}
        for row, query in enumerate(run.queries):
            if query in qrels:
                grades = labels[run.starts[row] : run.starts[row + 1]].astype(int).tolist()
                qrels[query] = dict(zip(run.documents_of(query), grades, strict=True))
        all_qrels.append(qrels)
    return all_qrels


def hit_labels(runs: Sequence[Run], answers: Answers, corpus: Path) -> list[NDArray[np.bool_]]:
    """For every hit of every run [n], whether its text contains an answer; False for queries without answers.

    The corpus is read once; no text stays in memory.
    """
    all_labels = [np.zeros(len(run.documents), dtype=bool) for run in runs]
    all_hits = [_group_hits(run, answers) for run in runs]
    for document in texts.read_texts(corpus, keep_empty=True):
        normalized = None
        for labels, hits in zip(all_labels, all_hits, strict=True):
            for row, query in hits.pop(document.id, ()):
                normalized = answers.normalize(document.text) if normalized is None else normalized
                labels[row] = answers.contains_answer(query, normalized)
    if absent := min((document for hits in all_hits for document in hits), default=None):
        reason = f"has no document {absent!r}, which a run names; give the corpus that was searched"
        raise DataError(f"{lines.source_name(corpus)}: {reason}")
    return all_labels


def _group_hits(run: Run, answers: Answers) -> dict[str, list[tuple[int, str]]]:
    """The row and the query of each hit of a question, by document."""
    hits: dict[str, list[tuple[int, str]]] = {}
    for query in filter(answers.by_question.__contains__, run.queries):
        first = int(run.starts[run.query_rows[query]])
        for row, document in enumerate(run.documents_of(query), first):
            hits.setdefault(document, []).append((row, query))
    return hits


def _compile_phrase(answer: str) -> str | None:
    spaced = tokenize(answer)
    return spaced if spaced.strip() else None


def _compile_pattern(answer: str) -> Any:
    text = unicodedata.normalize("NFD", answer)
    try:
        return regex.compile(text, _FLAGS) if text.strip() and not _HUGE_REPEAT.search(text) else None
    except (regex.error, OverflowError, RecursionError):
        return None
