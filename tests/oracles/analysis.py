"""Slow, obvious wins."""

from collections.abc import Mapping, Sequence


def count_wins(values: Mapping[str, Mapping[str, float]], queries: Sequence[str], run: str) -> int:
    """Number of queries on which every other run is worse."""
    return sum(all(values[other][query] < values[run][query] for other in values if other != run) for query in queries)
