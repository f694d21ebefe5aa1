"""Fusion by dictionaries: one query's lists as {document: score}, best first."""

import statistics


def came_sum(lists: list[dict[int, float]]) -> dict[int, float]:
    total: dict[int, float] = {}
    for document in sorted({document for hits in lists for document in hits}):
        total[document] = 0.0
        for hits in lists:
            if hits:
                total[document] += hits.get(document, min(hits.values()))
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
    return came_sum(standardised)
