"""Divergences of queries and documents, point by point: specs/cot_mote §5, reading B, as written."""

import math


def cosine(first: list[float], second: list[float]) -> float:
    lengths = [math.sqrt(sum(value * value for value in vector)) for vector in (first, second)]
    return sum(a * b for a, b in zip(first, second, strict=True)) / (lengths[0] * lengths[1])


def density(points: list[list[float]], bandwidth: float) -> list[float]:
    """Gaussian kernel density at its own points, normalised to sum to 1."""
    heights = []
    for at in points:
        squares = [sum((a - b) ** 2 for a, b in zip(at, point, strict=True)) for point in points]
        height = sum(math.exp(-square / (2 * bandwidth**2)) for square in squares)
        heights.append(height / (len(points) * (2 * math.pi) ** (len(at) / 2) * bandwidth ** len(at)))
    return [height / sum(heights) for height in heights]


def kl(first: list[float], second: list[float]) -> float:
    return sum(p * math.log(p / q) for p, q in zip(first, second, strict=True))


def divergences(queries: list[list[float]], documents: list[list[float]], bandwidth: float) -> tuple[float, float]:
    distance = [[1 - cosine(query, document) for document in documents] for query in queries]
    columns = [list(column) for column in zip(*distance, strict=True)]
    p, q = density(distance, bandwidth), density(columns, bandwidth)
    middle = [(a + b) / 2 for a, b in zip(p, q, strict=True)]
    return kl(p, q), (kl(p, middle) + kl(q, middle)) / 2
