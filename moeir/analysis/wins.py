"""Wins of each run by class of query: length, question word, and word overlap with an answer."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from moeir.records.qrels import Qrels

QUESTIONS = ("what", "who", "when", "where", "which", "why", "how")
CLOSED = ("is", "are", "was", "were", "do", "does", "did", "can", "could", "has", "have", "will", "would", "should")
LENGTHS = (3, 6, 10, 15)  # upper bounds in words
PARTS = (0.25, 0.5, 0.75, 1.0)
TIED, ALL = "tied", "all"
_WORD = re.compile(r"\w+")
Values = Mapping[str, Mapping[str, float]]  # run → query → value


@dataclass(frozen=True)
class Row:
    """One class of queries and one run: number of queries on which only this run is best, and its mean over the class."""

    by: str
    group: str
    queries: int
    run: str
    wins: int
    mean: float


def winner(values: Values, query: str) -> str:
    """The only best run on a query, or `tied`.

    >>> values = {"a": {"q": 1.0, "p": 0.5}, "b": {"q": 0.5, "p": 0.5}}
    >>> find_winner(values, "q"), find_winner(values, "p")
    ('a', 'tied')
    """
    best = max(by_query[query] for by_query in values.values())
    names = [name for name, by_query in values.items() if by_query[query] == best]
    return names[0] if len(names) == 1 else TIED


def table(values: Values, groups: Mapping[str, Mapping[str, str]]) -> list[Row]:
    """A row per class and run; `groups`: criterion → query → class. Classes in the order of `order_groups`, `tied` last, without a mean."""
    queries = list(next(iter(values.values())))
    won = {query: winner(values, query) for query in queries}
    rows = []
    for criterion, group_of in {ALL: dict.fromkeys(queries, ALL), **groups}.items():
        for group in ordered(criterion, group_of):
            members = [query for query in queries if group_of.get(query) == group]
            for run in (*values, TIED):
                wins = sum(won[query] == run for query in members)
                mean = float("nan") if run == TIED else sum(values[run][query] for query in members) / len(members)
                rows.append(Row(criterion, group, len(members), run, wins, mean))
    return rows


def ordered(criterion: str, group_of: Mapping[str, str]) -> list[str]:
    """Classes with at least one query, in ascending order, or in the order of `QUESTION_WORDS`."""
    order = {"length": _classes_of_length(), "question": [*QUESTIONS, "yes or no", "none"], "overlap": _classes_of_parts()}.get(
        criterion, [ALL]
    )
    return [group for group in order if group in set(group_of.values())]


def length(query: str) -> str:
    """Class of a query by its number of words.

    >>> length_class("who sleeps in a hollow tree"), length_class("owl")
    ('4-6 words', '1-3 words')
    """
    count = len(_WORD.findall(query))
    return _classes_of_length()[next((index for index, most in enumerate(LENGTHS) if count <= most), len(LENGTHS))]


def question(query: str) -> str:
    """First question word of a query; `yes or no` if it starts with one of `YES_NO_VERBS`.

    >>> question_class("In which tree do owls sleep?"), question_class("Do owls sleep?"), question_class("owl sleep")
    ('which', 'yes or no', 'none')
    """
    words = [word.lower() for word in _WORD.findall(query)]
    question_word = next((word for word in words if word in QUESTIONS), None)
    return "yes or no" if words and words[0] in CLOSED else question_word or "none"


def overlap(query: str, answers: Sequence[str]) -> str:
    """Class of a query by the largest share of its distinct words that one answer contains.

    >>> overlap_class("hollow tree owl", ["An owl sleeps in a hollow tree.", "tree"]), overlap_class("hollow tree", ["an oak"])
    ('75-100 %', '0-25 %')
    """
    words = set(_words(query))
    share = max((len(words & set(_words(answer))) / len(words) for answer in answers), default=0.0) if words else 0.0
    return _classes_of_parts()[next(index for index, most in enumerate(PARTS) if share <= most)]


def overlaps(queries: Mapping[str, str], qrels: Qrels, answers: Mapping[str, str]) -> dict[str, str]:
    """Overlap class of every query with a known answer text."""
    classes = {}
    for name, text in queries.items():
        if texts := [answers[document] for document, grade in qrels.get(name, {}).items() if grade > 0 and document in answers]:
            classes[name] = overlap(text, texts)
    return classes


def _words(text: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(text)]


def _classes_of_length() -> list[str]:
    lows = (1, *(most + 1 for most in LENGTHS))
    return [*(f"{low}-{high} words" for low, high in zip(lows, LENGTHS, strict=False)), f"{lows[-1]} words or more"]


def _classes_of_parts() -> list[str]:
    lows = (0.0, *PARTS)
    return [f"{100 * low:.0f}-{100 * high:.0f} %" for low, high in zip(lows, PARTS, strict=False)]
