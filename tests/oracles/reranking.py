"""Reranking by the slow obvious loops: one pair at a time, in Python numbers."""

import math
from statistics import mean, pstdev

from tests.oracles.order import ranked


def reranked(hits, depth, scores, *, rest=True):
    """Documents of a list, best first: the first `depth` by their new scores, then the others as they stood."""
    head = ranked({document: scores[document] for document in hits[:depth]})
    return head + (list(hits[depth:]) if rest else [])


def patient(scores, patience, best):
    """How many of a query's documents are scored before so many in a row are none of the first `best`."""
    done = min(patience, len(scores))
    while done < len(scores):
        before = sorted(scores[: done - patience], reverse=True)
        if len(before) >= best and max(scores[done - patience : done]) <= before[best - 1]:
            return done
        done = min(done + patience, len(scores))
    return done


def passages(size, window, stride):
    """(begin, end) of each passage of a text of `size` tokens: as many as it takes to reach its end."""
    found = [(0, min(size, window))]
    while found[-1][1] < size:
        begin = found[-1][0] + stride
        found.append((begin, min(size, begin + window)))
    return found


def together(lists, how):
    """What several rerankers' scores of the same documents become."""
    change = {"zscore": standardised, "mean": list, "softmax": chances, "rrf": reciprocals}[how]
    columns = list(zip(*[change(row) for row in lists], strict=True))
    return [math.fsum(column) if how == "rrf" else mean(column) for column in columns]


def standardised(row):
    return [0.0 if max(row) == min(row) else (score - mean(row)) / pstdev(row) for score in row]


def chances(row):
    powers = [math.exp(score) for score in row]
    return [power / math.fsum(powers) for power in powers]


def reciprocals(row):
    return [1 / (60 + 1 + sum(other > score for other in row) + (row.count(score) - 1) / 2) for score in row]
