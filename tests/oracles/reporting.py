"""Slow, obvious columns of a query page, and Holm's correction as in his paper."""

from collections.abc import Mapping, Sequence


def query_page_ranks(
    lists: Mapping[str, Sequence[tuple[str, float]]], grades: Mapping[str, int], depth: int
) -> dict[str, list[int | None]]:
    """The rank in each list of every document in the first `depth` of a list and of every relevant document."""
    documents = {document for hits in lists.values() for document, _ in hits[:depth]} | {
        answer for answer, grade in grades.items() if grade > 0
    }
    rows: dict[str, list[int | None]] = {}
    for document in documents:
        ranks: list[int | None] = []
        for hits in lists.values():
            names = [name for name, _ in hits]
            ranks.append(names.index(document) + 1 if document in names else None)
        rows[document] = ranks
    return rows


def holm(chances: Sequence[float]) -> list[float]:
    """Step down: the smallest of m is multiplied by m, the next by m - 1, and none becomes less than one before it."""
    remaining, corrected = dict(enumerate(chances)), {}
    at_least = 0.0
    while remaining:
        smallest = min(remaining, key=lambda index: remaining[index])
        at_least = max(at_least, min(1.0, remaining.pop(smallest) * (len(remaining) + 1)))
        corrected[smallest] = at_least
    return [corrected[smallest] for smallest in range(len(chances))]
