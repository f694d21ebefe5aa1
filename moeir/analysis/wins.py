"""Wins of each run: by class of query (length, question word, and word overlap with an answer), and query by query; ranks of relevant
documents in each run."""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from moeir.analysis.result import AnalysisResult, Mark, Plot
from moeir.records.qrels import Qrels
from moeir.records.runs import Run

QUESTION_WORDS = ("what", "who", "when", "where", "which", "why", "how")
YES_NO_VERBS = ("is", "are", "was", "were", "do", "does", "did", "can", "could", "has", "have", "will", "would", "should")
LENGTH_CLASSES = {3: "1-3 words", 6: "4-6 words", 10: "7-10 words", 15: "11-15 words", math.inf: "16 words or more"}  # by upper bound
OVERLAP_CLASSES = {0.25: "0-25 %", 0.5: "25-50 %", 0.75: "50-75 %", 1.0: "75-100 %"}
CLASSES = {  # by criterion, in ascending order
    "length": tuple(LENGTH_CLASSES.values()),
    "question": (*QUESTION_WORDS, "yes or no", "none"),
    "overlap": tuple(OVERLAP_CLASSES.values()),
}
TIED, ALL = "tied", "all"
_WORD = re.compile(r"\w+")
RunValues = Mapping[str, Mapping[str, float]]  # run → query → value


def find_winner(values: RunValues, query: str) -> str:
    """The only best run on a query, or `tied`.

    >>> values = {"a": {"q": 1.0, "p": 0.5}, "b": {"q": 0.5, "p": 0.5}}
    >>> find_winner(values, "q"), find_winner(values, "p")
    ('a', 'tied')
    """
    best = max(by_query[query] for by_query in values.values())
    names = [name for name, by_query in values.items() if by_query[query] == best]
    return names[0] if len(names) == 1 else TIED


def analyze_wins(values: RunValues, measure: str, groups: Mapping[str, Mapping[str, str]]) -> AnalysisResult:
    """Queries on which each run is the only best, in all and per class of queries; `groups`: criterion → query → class.

    A row per class and run, then `tied`, without a mean; classes in the order of `CLASSES`, or by their letters.
    """
    queries = list(next(iter(values.values())))
    winners = {query: find_winner(values, query) for query in queries}
    rows, marks = list[list[object]](), list[Mark]()
    for criterion, group_of in {ALL: dict.fromkeys(queries, ALL), **groups}.items():
        order = CLASSES.get(criterion, tuple(sorted(set(group_of.values()))))
        for group in (group for group in order if group in set(group_of.values())):
            members = [query for query in queries if group_of.get(query) == group]
            for run in (*values, TIED):
                wins = sum(winners[query] == run for query in members)
                mean = None if run == TIED else sum(values[run][query] for query in members) / len(members)
                rows.append([criterion, group, len(members), run, wins, wins / len(members), mean])
                marks.append((criterion, run, f"{group} ({len(members):,})", wins / len(members)))
    plot = Plot("bars", marks, y_label="share of queries it wins")
    return AnalysisResult(["by", "group", "queries", "run", "wins", "share", measure], rows, plot)


def length_class(query: str) -> str:
    """Class of a query by its number of words.

    >>> length_class("who sleeps in a hollow tree"), length_class("owl")
    ('4-6 words', '1-3 words')
    """
    count = len(_WORD.findall(query))
    return next(name for most, name in LENGTH_CLASSES.items() if count <= most)


def question_class(query: str) -> str:
    """First question word of a query; `yes or no` if it starts with one of `YES_NO_VERBS`.

    >>> question_class("In which tree do owls sleep?"), question_class("Do owls sleep?"), question_class("owl sleep")
    ('which', 'yes or no', 'none')
    """
    words = _WORD.findall(query.lower())
    question_word = next((word for word in words if word in QUESTION_WORDS), None)
    return "yes or no" if words and words[0] in YES_NO_VERBS else question_word or "none"


def overlap_class(query: str, answers: Sequence[str]) -> str:
    """Class of a query by the largest share of its distinct words that one answer contains.

    >>> overlap_class("hollow tree owl", ["An owl sleeps in a hollow tree.", "tree"]), overlap_class("hollow tree", ["an oak"])
    ('75-100 %', '0-25 %')
    """
    words, *others = (set(_WORD.findall(text.lower())) for text in (query, *answers))
    share = max((len(words & other) / max(len(words), 1) for other in others), default=0.0)
    return next(name for most, name in OVERLAP_CLASSES.items() if share <= most)


def group_queries(queries: Mapping[str, str], qrels: Qrels, answers: Mapping[str, str] | None) -> dict[str, dict[str, str]]:
    """Criterion → query → class of queries with their texts; `overlap` for those with a relevant document whose text is known."""
    groups = {
        "length": {name: length_class(text) for name, text in queries.items()},
        "question": {name: question_class(text) for name, text in queries.items()},
    }
    if answers is None:
        return groups
    known = {
        name: [answers[document] for document, grade in qrels.get(name, {}).items() if grade > 0 and document in answers]
        for name in queries
    }
    return groups | {"overlap": {name: overlap_class(queries[name], texts) for name, texts in known.items() if texts}}


def list_wins(values: RunValues, queries: Mapping[str, str] | None) -> AnalysisResult:
    """A row per query: its text if known, the winner, the value of each run and the spread, the largest minus the smallest value.

    The largest spread first. Several winners stand with = between them; = alone means that all runs are equal.

    >>> values = {"a": {"q": 0.5, "p": 1.0, "r": 0.0}, "b": {"q": 0.5, "p": 0.25, "r": 0.5}, "c": {"q": 0.5, "p": 1.0, "r": 0.25}}
    >>> for row in list_wins(values, None).rows: print(*row)
    p a = c 1.0 0.25 1.0 0.75
    r b 0.0 0.5 0.25 0.5
    q = 0.5 0.5 0.5 0.0
    """
    rows: list[list[Any]] = []
    for query in next(iter(values.values())):
        scores = {name: by_query[query] for name, by_query in values.items()}
        highest, lowest = max(scores.values()), min(scores.values())
        winner = " = ".join(name for name, score in scores.items() if score == highest) if highest > lowest else "="
        text = [] if queries is None else [" ".join(queries[query].split())]
        rows.append([query, *text, winner, *scores.values(), highest - lowest])
    rows.sort(key=lambda row: row[-1], reverse=True)
    return AnalysisResult(["query", *([] if queries is None else ["text"]), "winner", *values, "spread"], rows)


def analyze_ranks(
    runs: Mapping[str, Run], qrels: Qrels, queries: Collection[str], texts: Mapping[str, str] | None, depth: int
) -> AnalysisResult:
    """A row per query and relevant document with its rank in each run, None beyond `depth`; the best ranked document of a query first.

    Cai et al. 2023 (CAME), Figure 4.
    """
    rows: list[list[object]] = []
    for query in queries:
        relevant = {document for document, grade in qrels[query].items() if grade > 0}
        lists = [run.documents_of(query)[:depth] for run in runs.values()]
        ranks = [{document: rank for rank, document in enumerate(documents, 1) if document in relevant} for documents in lists]
        best = {document: min(by_run.get(document, depth + 1) for by_run in ranks) for document in relevant}
        for document in sorted(relevant, key=lambda document: (best[document], document)):
            text = [] if texts is None else [" ".join(texts[query].split())]
            rows.append([query, *text, document, *(by_run.get(document) for by_run in ranks)])
    return AnalysisResult(["query", *([] if texts is None else ["text"]), "document", *runs], rows)
