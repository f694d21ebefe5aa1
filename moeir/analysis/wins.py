"""Wins of each run: by class of query (length, question word, and word overlap with an answer), and query by query; ranks of relevant
documents in each run."""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from moeir.analysis.result import AnalysisResult, Plot
from moeir.records.qrels import Qrels
from moeir.records.runs import Run

QUESTION_WORDS = ("what", "who", "when", "where", "which", "why", "how")
YES_NO_VERBS = ("is", "are", "was", "were", "do", "does", "did", "can", "could", "has", "have", "will", "would", "should")
LENGTH_CLASSES = {3: "1-3 words", 6: "4-6 words", 10: "7-10 words", 15: "11-15 words", math.inf: "16 words or more"}  # by upper bound
OVERLAP_CLASSES = {0.25: "0-25 %", 0.5: "25-50 %", 0.75: "50-75 %", 1.0: "75-100 %"}
QUESTION_CLASSES = (*QUESTION_WORDS, "yes or no", "none")
ORDERS = {"length": tuple(LENGTH_CLASSES.values()), "question": QUESTION_CLASSES, "overlap": tuple(OVERLAP_CLASSES.values())}
TIED, ALL = "tied", "all"
_WORD = re.compile(r"\w+")
RunValues = Mapping[str, Mapping[str, float]]  # run → query → value


@dataclass(frozen=True)
class WinRow:
    """One class of queries and one run: number of queries on which only this run is best, and its mean over the class."""

    criterion: str
    group: str
    queries: int
    run: str
    wins: int
    mean: float


def find_winner(values: RunValues, query: str) -> str:
    """The only best run on a query, or `tied`.

    >>> values = {"a": {"q": 1.0, "p": 0.5}, "b": {"q": 0.5, "p": 0.5}}
    >>> find_winner(values, "q"), find_winner(values, "p")
    ('a', 'tied')
    """
    best = max(by_query[query] for by_query in values.values())
    names = [name for name, by_query in values.items() if by_query[query] == best]
    return names[0] if len(names) == 1 else TIED


def win_table(values: RunValues, groups: Mapping[str, Mapping[str, str]]) -> list[WinRow]:
    """A row per class and run; `groups`: criterion → query → class. Classes in the order of `order_groups`, `tied` last, without a mean."""
    queries = list(next(iter(values.values())))
    won = {query: find_winner(values, query) for query in queries}
    rows = []
    for criterion, group_of in {ALL: dict.fromkeys(queries, ALL), **groups}.items():
        for group in order_groups(criterion, group_of):
            members = [query for query in queries if group_of.get(query) == group]
            for run in (*values, TIED):
                wins = sum(won[query] == run for query in members)
                mean = float("nan") if run == TIED else sum(values[run][query] for query in members) / len(members)
                rows.append(WinRow(criterion, group, len(members), run, wins, mean))
    return rows


def order_groups(criterion: str, group_of: Mapping[str, str]) -> list[str]:
    """Classes with at least one query, in ascending order, or in the order of `QUESTION_WORDS`; values of a field by their letters."""
    present = set(group_of.values())
    if criterion not in ORDERS:
        return sorted(present)
    return [group for group in ORDERS[criterion] if group in present]


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
    words = [word.lower() for word in _WORD.findall(query)]
    question_word = next((word for word in words if word in QUESTION_WORDS), None)
    return "yes or no" if words and words[0] in YES_NO_VERBS else question_word or "none"


def overlap_class(query: str, answers: Sequence[str]) -> str:
    """Class of a query by the largest share of its distinct words that one answer contains.

    >>> overlap_class("hollow tree owl", ["An owl sleeps in a hollow tree.", "tree"]), overlap_class("hollow tree", ["an oak"])
    ('75-100 %', '0-25 %')
    """
    words = set(_split_words(query))
    share = max((len(words & set(_split_words(answer))) / len(words) for answer in answers), default=0.0) if words else 0.0
    return next(name for most, name in OVERLAP_CLASSES.items() if share <= most)


def overlap_classes(queries: Mapping[str, str], qrels: Qrels, answers: Mapping[str, str]) -> dict[str, str]:
    """Overlap class of every query with a known answer text."""
    classes = {}
    for name, text in queries.items():
        if texts := [answers[document] for document, grade in qrels.get(name, {}).items() if grade > 0 and document in answers]:
            classes[name] = overlap_class(text, texts)
    return classes


def _split_words(text: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(text)]


def group_queries(queries: Mapping[str, str], qrels: Qrels, answers: Mapping[str, str] | None) -> dict[str, dict[str, str]]:
    """Criterion → query → class of queries with their texts; the word overlap with relevant documents if their texts are known."""
    groups = {
        "length": {name: length_class(text) for name, text in queries.items()},
        "question": {name: question_class(text) for name, text in queries.items()},
    }
    return groups if answers is None else groups | {"overlap": overlap_classes(queries, qrels, answers)}


def analyze_wins(values: RunValues, measure: str, groups: Mapping[str, Mapping[str, str]]) -> AnalysisResult:
    """Queries on which each run is best, in all and per class of queries."""
    counts = win_table(values, groups)
    rows = [
        [one.criterion, one.group, one.queries, one.run, one.wins, one.wins / one.queries, None if one.run == TIED else one.mean]
        for one in counts
    ]
    marks = [(one.criterion, one.run, f"{one.group} ({one.queries:,})", one.wins / one.queries) for one in counts]
    plot = Plot("bars", marks, y_label="share of queries it wins")
    return AnalysisResult(["by", "group", "queries", "run", "wins", "share", measure], rows, plot)


def clean_text(text: str) -> str:
    """A text on one line and without what a terminal would obey.

    >>> clean_text("who hunts\\n \\x1b[1mmice")
    'who hunts [1mmice'
    """
    return "".join(letter for letter in " ".join(text.split()) if letter.isprintable())


def list_wins(values: RunValues, queries: Mapping[str, str] | None) -> AnalysisResult:
    """A row per query: its text if known, the winner, the value of each run and the spread, the largest minus the smallest value.

    The largest spread first. Several winners stand with = between them; = alone means that all runs are equal.

    >>> values = {"a": {"q": 0.5, "p": 1.0, "r": 0.0}, "b": {"q": 0.5, "p": 0.25, "r": 0.5}, "c": {"q": 0.5, "p": 1.0, "r": 0.25}}
    >>> for row in list_wins(values, None).rows: print(*row)
    p a = c 1.0 0.25 1.0 0.75
    r b 0.0 0.5 0.25 0.5
    q = 0.5 0.5 0.5 0.0
    """
    rows: list[tuple[float, list[object]]] = []
    for query in next(iter(values.values())):
        scores = {name: by_query[query] for name, by_query in values.items()}
        highest, lowest = max(scores.values()), min(scores.values())
        winner = " = ".join(name for name, score in scores.items() if score == highest) if highest > lowest else "="
        text = [] if queries is None else [clean_text(queries[query])]
        rows.append((highest - lowest, [query, *text, winner, *scores.values(), highest - lowest]))
    ordered = [row for _, row in sorted(rows, key=lambda pair: -pair[0])]
    return AnalysisResult(["query", *([] if queries is None else ["text"]), "winner", *values, "spread"], ordered)


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
            text = [] if texts is None else [clean_text(texts[query])]
            rows.append([query, *text, document, *(by_run.get(document) for by_run in ranks)])
    return AnalysisResult(["query", *([] if texts is None else ["text"]), "document", *runs], rows)
