"""Wins of each run, counted and query by query."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from moeir.analysis.result import AnalysisResult

TIED = "tied"
RunValues = Mapping[str, Mapping[str, float]]  # run → query → value


def list_wins(values: RunValues) -> AnalysisResult:
    """A row per query: the winner, the value of each run and the spread, the largest minus the smallest value.

    The largest spread first. Several winners stand with = between them; = alone means that all runs are equal.

    >>> values = {"a": {"q": 0.5, "p": 1.0, "r": 0.0}, "b": {"q": 0.5, "p": 0.25, "r": 0.5}, "c": {"q": 0.5, "p": 1.0, "r": 0.25}}
    >>> for row in list_wins(values).rows: print(*row)
    p a = c 1.0 0.25 1.0 0.75
    r b 0.0 0.5 0.25 0.5
    q = 0.5 0.5 0.5 0.0
    """
    rows: list[list[Any]] = []
    for query in next(iter(values.values())):
        scores = {name: by_query[query] for name, by_query in values.items()}
        highest, lowest = max(scores.values()), min(scores.values())
        winner = " = ".join(name for name, score in scores.items() if score == highest) if highest > lowest else "="
        rows.append([query, winner, *scores.values(), highest - lowest])
    rows.sort(key=lambda row: row[-1], reverse=True)
    return AnalysisResult(["query", "winner", *values, "spread"], rows)


def analyze_wins(values: RunValues, measure: str) -> AnalysisResult:
    """Queries on which each run is the only best: a row per run with its mean, then `tied`, without a mean."""
    queries = list_wins(values).rows
    winners = Counter(winner if winner in values else TIED for _, winner, *_ in queries)
    means: dict[str, float | None] = {run: sum(by_query.values()) / len(queries) for run, by_query in values.items()}
    rows = [[run, len(queries), winners[run], winners[run] / len(queries), mean] for run, mean in (means | {TIED: None}).items()]
    return AnalysisResult(["run", "queries", "wins", "share", measure], rows)
