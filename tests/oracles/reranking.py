"""Reranking by slow, obvious loops: one pair at a time, in Python numbers."""

import math
from statistics import mean, pstdev

from tests.oracles.rank_order import rank_order


def rerank(hits, depth, scores, *, rest=True):
    """Documents of a list, best first: the first `depth` by their new scores, then the others in their order."""
    head = rank_order({document: scores[document] for document in hits[:depth]})
    return head + (list(hits[depth:]) if rest else [])


def passage_windows(size, window, stride):
    """(begin, end) of each passage of a text of `size` tokens: up to its end."""
    spans = [(0, min(size, window))]
    while spans[-1][1] < size:
        begin = spans[-1][0] + stride
        spans.append((begin, min(size, begin + window)))
    return spans


def ensemble_scores(lists, method):
    """The combined scores of several rerankers for the same documents."""
    transform = {"zscore": zscores, "mean": list, "rrf": reciprocal_ranks}[method]
    columns = list(zip(*[transform(row) for row in lists], strict=True))
    return [math.fsum(column) if method == "rrf" else mean(column) for column in columns]


def zscores(row):
    return [0.0 if max(row) == min(row) else (score - mean(row)) / pstdev(row) for score in row]


def reciprocal_ranks(row):
    return [1 / (60 + 1 + sum(other > score for other in row) + (row.count(score) - 1) / 2) for score in row]
