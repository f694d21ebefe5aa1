"""Slow, obvious wins and projections."""

import math
from collections.abc import Callable, Mapping, Sequence


def count_wins(values: Mapping[str, Mapping[str, float]], queries: Sequence[str], run: str) -> int:
    """Number of queries on which every other run is worse."""
    return sum(all(values[other][query] < values[run][query] for other in values if other != run) for query in queries)


def sum_squared_distances(points: Sequence[Sequence[float]]) -> float:
    """Sum of squared distances of all pairs."""
    return sum(math.dist(one, other) ** 2 for one in points for other in points)


def nearest_neighbours(points: Sequence[Sequence[float]], count: int, far: Callable[..., float] = math.dist) -> list[set[int]]:
    """The `count` nearest neighbours of each point."""
    nearest = []
    for index, point in enumerate(points):
        order = sorted((far(point, other), other_index) for other_index, other in enumerate(points) if other_index != index)
        nearest.append({other_index for _, other_index in order[:count]})
    return nearest
