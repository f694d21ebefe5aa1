"""Search by slow, obvious loops: score everything, sort everything."""

import math
import struct

from tests.oracles import representations


def to_float32(number):
    """A number rounded to float32.

    >>> to_float32(0.5)
    0.5
    """
    return struct.unpack("f", struct.pack("f", number))[0]


def dense(query, documents):
    """{row: score} of every document."""
    return {row: to_float32(representations.dense(query, document)) for row, document in enumerate(documents)}


def maxsim(query, documents):
    """{row: score} of the documents that have tokens; empty for a query without tokens."""
    if not query:
        return {}
    return {row: to_float32(representations.late_interaction(query, document)) for row, document in enumerate(documents) if document}


def sparse(query, documents):
    """{row: score} of the documents sharing a term; queries and documents are dictionaries of weights, zero = absent."""
    scores = {}
    for row, document in enumerate(documents):
        if any(weight and document.get(term) for term, weight in query.items()):
            scores[row] = to_float32(representations.sparse(query, document))
    return scores


def bm25(query, documents, k1, b):
    """{row: score} of the documents sharing a term; query and documents are lists of terms, and empty documents do not count."""
    count = sum(map(bool, documents))
    mean = sum(map(len, documents)) / max(count, 1)
    scores = {}
    for row, document in enumerate(documents):
        if set(query) & set(document):
            scores[row] = 0.0
        for term in query:
            holders = sum(term in other for other in documents)
            frequency = document.count(term)
            if frequency:
                idf = math.log(1 + (count - holders + 0.5) / (holders + 0.5))
                scores[row] += idf * frequency / (frequency + k1 * (1 - b + b * len(document) / mean))
    return scores


def top_rows(scores, id_ranks, depth):
    """The first `depth` (row, score): score descending, then `id_ranks` descending."""
    return sorted(scores.items(), key=lambda hit: (hit[1], id_ranks[hit[0]]), reverse=True)[:depth]


def result_hits(rows, scores):
    """One line of an index's result as (row, score), without the padding at its end."""
    row_scores = [(int(row), float(score)) for row, score in zip(rows, scores, strict=True) if row >= 0]
    assert all(row == -1 and score == -math.inf for row, score in list(zip(rows, scores, strict=True))[len(row_scores) :])
    return row_scores


def exact_match(query, documents):
    """{row: score} of the documents that score above 0; query and documents are lists of (term, vector)."""
    scores = {}
    for row, document in enumerate(documents):
        if (score := to_float32(representations.exact_match(query, document))) > 0:
            scores[row] = score
    return scores


def sum_experts(experts, floor_scores):
    """{row: sum} over the documents that any expert retrieves; experts are {row: score}, `floor_scores` each one's score of all others."""
    rows = sorted({row for scores in experts for row in scores})
    return {row: to_float32(math.fsum(scores.get(row, floor) for scores, floor in zip(experts, floor_scores, strict=True))) for row in rows}
