"""The exact engines with texts that try them, and checks of what they find: a full sort, and the same bytes for any batching."""

from collections.abc import Callable
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from hypothesis import strategies as st

from moeir.indexes.exact_match import ExactMatchIndex
from moeir.indexes.flat import Flat
from moeir.indexes.inverted import Inverted
from moeir.indexes.maxsim import MaxSim
from moeir.representations.dense import Dense
from moeir.representations.exact_match import ExactMatch
from moeir.representations.multivector import MultiVector
from moeir.representations.sparse import Sparse
from tests.oracles import search as oracle

VOCABULARY = 6
vectors = st.lists(st.integers(-16, 16).map(lambda number: number / 8), min_size=3, max_size=3)  # sums are exact, ties are many


def offsets(texts):
    return torch.tensor([0, *np.cumsum([len(text) for text in texts])], dtype=torch.int64)


def pack_vectors(texts, width=3):
    return Dense(torch.tensor(texts, dtype=torch.float32).view(-1, width))


def pack_tokens(texts, width=3):
    return MultiVector(torch.tensor([token for text in texts for token in text], dtype=torch.float32).view(-1, width), offsets(texts))


def pack_matches(texts, width=3):
    terms = torch.tensor([term for text in texts for term, _ in text], dtype=torch.int64)
    return ExactMatch(terms, pack_tokens([[vector for _, vector in text] for text in texts], width).vectors, offsets(texts))


def pack_weights(texts, vocabulary=VOCABULARY):
    terms = torch.tensor([term for text in texts for term in text], dtype=torch.int64)
    weights = torch.tensor([weight for text in texts for weight in text.values()], dtype=torch.float32)
    return Sparse(offsets(texts), terms, weights, vocabulary)


class Engine(NamedTuple):
    """An engine, one text for hypothesis, how texts are packed, the oracle, and the arrays of a saved index."""

    type: Any
    text: st.SearchStrategy[Any]
    pack: Callable[..., Any]
    scores: Callable[[Any, Any], Any]
    files: tuple[str, ...]


ENGINES = {
    "flat": Engine(Flat, vectors, pack_vectors, oracle.dense, ("vectors",)),
    "maxsim": Engine(MaxSim, st.lists(vectors, max_size=4), pack_tokens, oracle.maxsim, ("starts", "vectors")),
    "exact-match": Engine(
        ExactMatchIndex, st.lists(st.tuples(st.integers(0, 4), vectors), max_size=5), pack_matches, oracle.exact_match,
        ("rows", "starts", "terms", "vectors"),
    ),
    "inverted": Engine(
        Inverted, st.dictionaries(st.integers(0, VOCABULARY - 1), st.integers(-4, 8).map(lambda number: number / 8)), pack_weights,
        oracle.sparse, ("begins", "ends", "highest", "lists", "offsets", "starts", "steps", "terms", "weights", "windows"),
    ),
}  # fmt: skip


def build_index(engine, *shards, id_ranks=None, **attributes):
    """`open_index` of an engine by its name."""
    return open_index(ENGINES[engine].type(id_ranks), *shards, **attributes)


def open_index(index, *shards, **attributes):
    """An engine with these shards, saved and opened, with these attributes all the time."""
    vars(index).update(attributes)
    for shard in shards:
        index.add(shard)
    with TemporaryDirectory() as folder:
        index.save(folder)
        opened = type(index).open(folder, index.id_ranks)
    vars(opened).update(attributes)
    return opened


def near_ties(engine, seed=0, count=300, width=24):
    """Queries and documents whose scores a scan cannot tell apart: few vectors, changed in the last float16 bit; few different weights."""
    generator = torch.Generator().manual_seed(seed)
    if engine == "inverted":
        matrices = [torch.rand(rows, 60, generator=generator) for rows in (9, count)]
        return [Sparse.from_matrix(torch.where(matrix > 0.8, (matrix * 40).round() / 40, torch.zeros(()))) for matrix in matrices]
    bases = torch.nn.functional.normalize(torch.randn(6, width, generator=generator), dim=1).half()
    lengths = torch.ones(count, dtype=torch.int64) if engine == "flat" else torch.randint(0, 8, (count,), generator=generator)
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    numbers = torch.randint(6, (int(starts[-1]),), generator=generator)
    documents, rows, column = bases[numbers].clone(), torch.arange(len(numbers)), torch.randint(width, (len(numbers),), generator=generator)
    documents.view(torch.int16)[rows, column] += torch.randint(-1, 2, (len(rows),), generator=generator).to(torch.int16)
    queries = bases[[0, 1, 2, 0, 5]].float() + 1e-3 * torch.randn(5, width, generator=generator)
    if engine == "flat":
        return Dense(queries * torch.tensor([1.0, 1e-30, 1e30, -1.0, 1.0])[:, None]), Dense(documents)
    query_starts = torch.tensor([0, 3, 3, 4, 5])
    if engine == "maxsim":
        return MultiVector(queries, query_starts), MultiVector(documents, starts)
    return ExactMatch(torch.tensor([0, 1, 0, 7, 1]), queries, query_starts), ExactMatch(numbers % 2, documents, starts)


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
