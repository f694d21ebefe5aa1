"""Checks for every exact engine: the result of a full sort, and the same bytes for any batching."""

import torch

from tests.oracles import search as oracle


class RecordingPool:
    """A pool that keeps all scores pushed to it."""

    def __init__(self):
        self.scores = []

    def push(self, scores, rows):
        self.scores.append(scores[:, : len(rows)].clone())


def same_bytes(actual, expected):
    """Whether rows and scores have the same bytes."""
    return all(one.tobytes() == other.tobytes() for one, other in zip(actual, expected, strict=True))


def is_full_sort(actual, scores_of, queries, id_ranks, depth):
    """Whether each query's result is the full sort of `scores_of(query)`: {row: score}."""
    results = zip(queries, *actual, strict=True)
    return all(oracle.result_hits(rows, scores) == oracle.top_rows(scores_of(query), id_ranks, depth) for query, rows, scores in results)


def scores_one_by_one(index, queries, depth):
    """The scores of queries searched one by one, as bytes."""
    return b"".join(index.search(queries.select(torch.tensor([row])), depth)[1].tobytes() for row in range(len(queries)))


def limit_device_memory(available, monkeypatch):
    """Limit the CUDA memory that indexes opened from now on see to so many bytes; None: no limit."""
    if available is not None:
        for module in ("moeir.indexes.two_step", "moeir.indexes.token_store", "moeir.indexes.vector_store"):
            monkeypatch.setattr(f"{module}.available_bytes", lambda device: available)
