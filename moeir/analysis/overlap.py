"""Overlap measures of two ranked lists of one query."""

from collections.abc import Sequence

from moeir.errors import UsageError


def rbo(first: Sequence[str], second: Sequence[str], *, persistence: float = 0.9) -> float:
    """Rank-biased overlap, extrapolated: 1 for equal lists, 0 for lists without a common document.

    Lists may differ in length. Two empty lists are equal; an empty list has nothing in common with another.
    Webber, Moffat and Zobel 2010, eq. 32 (eq. 30 where the lists are equally long).

    >>> round(rbo(["a", "b", "c"], ["b", "a", "d"], persistence=0.9), 4)
    0.63
    """
    if not 0.0 < persistence < 1.0:
        raise UsageError(f"persistence of rank-biased overlap lies between 0 and 1, found {persistence}")
    short, long = sorted((list(first), list(second)), key=len)
    if not short:
        return 1.0 if not long else 0.0
    seen: set[str] = set()
    common, total = 0, 0.0
    common_at_short = 0
    for depth, document in enumerate(long, 1):
        new_documents = [document] + ([short[depth - 1]] if depth <= len(short) else [])
        for new_document in new_documents:
            common += new_document in seen
            seen.add(new_document)
        if depth <= len(short):
            common_at_short = common
            agreement = common / depth
        else:
            agreement = common / depth + common_at_short * (depth - len(short)) / (len(short) * depth)
        total += agreement * persistence**depth
    tail = (common - common_at_short) / len(long) + common_at_short / len(short)
    return (1.0 - persistence) / persistence * total + tail * persistence ** len(long)


def overlap(first: Sequence[str], second: Sequence[str], *, depth: int = 100) -> float:
    """Share of the top `depth` that two lists have in common, of the longer list where both are shorter.

    >>> overlap(["a", "b", "c"], ["c", "d", "a"], depth=3) == 2 / 3
    True
    """
    if depth < 1:
        raise UsageError(f"overlap:depth={depth}: expected at least 1")
    tops = set(first[:depth]), set(second[:depth])
    return len(tops[0] & tops[1]) / max(len(tops[0]), len(tops[1]), 1)
