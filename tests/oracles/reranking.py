"""Reranking by slow, obvious loops: one pair at a time, in Python numbers."""

from statistics import mean, pstdev

from tests.oracles.rank_order import rank_order


def rerank(hits, depth, scores, *, rest=True):
    """Documents of a list, best first: the first `depth` by their new scores, then the others in their order."""
    head = rank_order({document: scores[document] for document in hits[:depth]})
    return head + (list(hits[depth:]) if rest else [])


def ensemble_scores(lists, method):
    """The combined scores of several rerankers for the same documents."""
    columns = list(zip(*[zscores(row) if method == "zscore" else row for row in lists], strict=True))
    return list(map(mean, columns))


def zscores(row):
    return [0.0 if max(row) == min(row) else (score - mean(row)) / pstdev(row) for score in row]
