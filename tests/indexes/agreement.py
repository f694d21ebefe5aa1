"""What every exact engine is held to: the list that sorting everything gives, and the same bytes however it is asked."""

import torch

from tests.oracles import search as oracle


def same(found, expected):
    """Whether rows and scores are the same bytes."""
    return all(mine.tobytes() == theirs.tobytes() for mine, theirs in zip(found, expected, strict=True))


def sorts(found, scored, queries, places, depth):
    """Whether each query's line is the full sort of what `scored` gives of it: {row: score}."""
    lines = zip(queries, *found, strict=True)
    return all(oracle.hits(rows, scores) == oracle.ranking(scored(query), places, depth) for query, rows, scores in lines)


def alone(index, queries, depth):
    """The scores of queries asked one by one, as bytes."""
    return b"".join(index.search(queries.select(torch.tensor([line])), depth)[1].tobytes() for line in range(len(queries)))


def leave(available, monkeypatch):
    """Leave so many bytes of a CUDA device to what is opened from now on; None: all that it has."""
    if available is not None:
        for module in ("candidates", "ragged", "storage"):
            monkeypatch.setattr(f"moeir.indexes.{module}.available_bytes", lambda device: available)
