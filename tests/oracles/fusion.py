"""Fusion by dictionaries: one query's lists as {document: score}, best first."""

import statistics


def came_sum(lists: list[dict[int, float]], depth: int) -> dict[int, float]:
    """CAME, §3.4: of a document "not in the top-K ranking list" the score is that "of the K-th one"; a list without a K-th one ends where
    its expert scores nothing else, so the bound is 0, or less where scores are negative."""
    return sum_lists(lists, [kth_score(hits, depth) for hits in lists])


def kth_score(hits: dict[int, float], depth: int) -> float:
    return list(hits.values())[depth - 1] if len(hits) >= depth else min(0.0, *hits.values(), 0.0)


def sum_lists(lists: list[dict[int, float]], missing: list[float]) -> dict[int, float]:
    documents = sorted({document for hits in lists for document in hits})
    total = dict.fromkeys(documents, 0.0)
    for document in documents:
        for hits, score in zip(lists, missing, strict=True):
            total[document] += hits.get(document, score)
    return total


def combsum(lists: list[dict[int, float]]) -> dict[int, float]:
    documents = {document for hits in lists for document in hits}
    return {document: sum(hits.get(document, 0.0) for hits in lists) for document in documents}


def rrf(lists: list[dict[int, float]], constant: float) -> dict[int, float]:
    total: dict[int, float] = {}
    for hits in lists:
        for rank, document in enumerate(hits, 1):
            total[document] = total.get(document, 0.0) + 1.0 / (constant + rank)
    return total


def zscore(lists: list[dict[int, float]]) -> dict[int, float]:
    standardised = []
    for hits in lists:
        if hits:
            mean, spread = statistics.fmean(hits.values()), statistics.pstdev(hits.values())
            equal = len(set(hits.values())) == 1
            standardised.append({document: 0.0 if equal else (score - mean) / spread for document, score in hits.items()})
    return sum_lists(standardised, [min(hits.values()) for hits in standardised])


def minmax(hits: dict[int, float]) -> dict[int, float]:
    low, high = min(hits.values(), default=0.0), max(hits.values(), default=0.0)
    return {document: (score - low) / (high - low) if high > low else 0.0 for document, score in hits.items()}


def normsum(lists: list[dict[int, float]]) -> dict[int, float]:
    return combsum([minmax(hits) for hits in lists])


def normmax(lists: list[dict[int, float]]) -> dict[int, float]:
    return keep_maximum([minmax(hits) for hits in lists], 0.0)


def keep_maximum(lists: list[dict[int, float]], missing: float) -> dict[int, float]:
    documents = {document for hits in lists for document in hits}
    return {document: max(hits.get(document, missing) for hits in lists if hits) for document in documents}


def reciprocal_ranks(hits: dict[int, float]) -> dict[int, float]:
    return {document: 1.0 / rank for rank, document in enumerate(hits, 1)}


def sumrr(lists: list[dict[int, float]], depth: int) -> dict[int, float]:
    return sum_lists([reciprocal_ranks(hits) for hits in lists], [1 / depth if hits else 0.0 for hits in lists])


def maxrr(lists: list[dict[int, float]], depth: int) -> dict[int, float]:
    return keep_maximum([reciprocal_ranks(hits) for hits in lists], 1 / depth)


def combmnz(lists: list[dict[int, float]]) -> dict[int, float]:
    return {document: score * sum(document in hits for hits in lists) for document, score in normsum(lists).items()}


def linear(lists: list[dict[int, float]], weights: list[float], depth: int) -> dict[int, float]:
    weighted = [{document: weight * score for document, score in hits.items()} for hits, weight in zip(lists, weights, strict=True)]
    return sum_lists(weighted, [weight * kth_score(hits, depth) for hits, weight in zip(lists, weights, strict=True)])


def hybrid(first: dict[int, float], second: dict[int, float], alpha: float, depth: int, centred: bool) -> dict[int, float]:
    sides = []
    for hits in (first, second):
        best = dict(list(hits.items())[:depth])
        if centred and best:
            low, high = min(best.values()), max(best.values())
            best = {document: (score - (low + high) / 2) / (high - low) if high > low else 0.0 for document, score in best.items()}
        sides.append(best)
    total = {}
    for document in sides[0] | sides[1]:
        worth = [side.get(document, min(side.values())) if side else 0.0 for side in sides]
        total[document] = worth[0] + alpha * worth[1]
    return total
