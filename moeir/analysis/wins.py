"""Which run is best on which queries: by their length, their question word, and how much of them stands in an answer."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from moeir.records.qrels import Qrels

QUESTIONS = ("what", "who", "when", "where", "which", "why", "how")
CLOSED = ("is", "are", "was", "were", "do", "does", "did", "can", "could", "has", "have", "will", "would", "should")
LENGTHS = (3, 6, 10, 15)  # words, at most, of a class
PARTS = (0.25, 0.5, 0.75, 1.0)
TIED, ALL = "tied", "all"
_WORD = re.compile(r"\w+")
Values = Mapping[str, Mapping[str, float]]  # run → query → value


@dataclass(frozen=True)
class Row:
    """Of one class of queries and one run: on how many it alone is best, and the mean over the class."""

    by: str
    group: str
    queries: int
    run: str
    wins: int
    mean: float


def winner(values: Values, query: str) -> str:
    """The run that alone is best on a query, or `tied`.

    >>> found = {"a": {"q": 1.0, "p": 0.5}, "b": {"q": 0.5, "p": 0.5}}
    >>> winner(found, "q"), winner(found, "p")
    ('a', 'tied')
    """
    best = max(by_query[query] for by_query in values.values())
    names = [name for name, by_query in values.items() if by_query[query] == best]
    return names[0] if len(names) == 1 else TIED


def table(values: Values, groups: Mapping[str, Mapping[str, str]]) -> list[Row]:
    """A row for each class and run; `groups`: by → query → class. Classes come in the order of `ordered`, `tied` last, without a mean."""
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
    """The classes that some query has, from little to much, or as `QUESTIONS` has them."""
    order = {"length": _classes_of_length(), "question": [*QUESTIONS, "yes or no", "none"], "overlap": _classes_of_parts()}.get(
        criterion, [ALL]
    )
    return [group for group in order if group in set(group_of.values())]


def length(query: str) -> str:
    """The class of a query by its words.

    >>> length("who sleeps in a hollow tree"), length("owl")
    ('4-6 words', '1-3 words')
    """
    count = len(_WORD.findall(query))
    return _classes_of_length()[next((index for index, most in enumerate(LENGTHS) if count <= most), len(LENGTHS))]


def question(query: str) -> str:
    """The first question word of a query; `yes or no` where it begins with a verb that asks for that.

    >>> question("In which tree do owls sleep?"), question("Do owls sleep?"), question("owl sleep")
    ('which', 'yes or no', 'none')
    """
    words = [word.lower() for word in _WORD.findall(query)]
    question_word = next((word for word in words if word in QUESTIONS), None)
    return "yes or no" if words and words[0] in CLOSED else question_word or "none"


def overlap(query: str, answers: Sequence[str]) -> str:
    """The class of a query by the part of its distinct words that stand in the answer that has most of them.

    >>> overlap("hollow tree owl", ["An owl sleeps in a hollow tree.", "tree"]), overlap("hollow tree", ["an oak"])
    ('75-100 %', '0-25 %')
    """
    words = set(_words(query))
    share = max((len(words & set(_words(answer))) / len(words) for answer in answers), default=0.0) if words else 0.0
    return _classes_of_parts()[next(index for index, most in enumerate(PARTS) if share <= most)]


def overlaps(queries: Mapping[str, str], qrels: Qrels, answers: Mapping[str, str]) -> dict[str, str]:
    """The class of every query of which an answer's text is known."""
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
