"""Pair scores equal those of search, and the fused sum has the sums over all documents."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moeir.errors import UsageError
from moeir.indexes.base import Index
from moeir.indexes.exact_sum import fuse_exact
from moeir.indexes.flat import Flat
from moeir.representations.dense import Dense
from moeir.representations.multivector import MultiVector
from moeir.representations.sparse import Sparse
from tests.indexes import engine_checks
from tests.oracles import search as oracle
from tests.representations import test_representations

pytestmark = pytest.mark.usefixtures("form")

ENGINES = {"global": "flat", "lexical": "inverted", "local": "maxsim", "exact": "exact-match"}
TERMS = 5


def random_texts(expert, count, seed):
    kind = engine_checks.ENGINES[ENGINES[expert]].type.kind
    return test_representations.random_texts(kind, count, seed, vocabulary=TERMS, fewest=0)


def build_index(documents, id_ranks=None) -> dict[str, Index]:
    return {name: engine_checks.build_index(ENGINES[name], texts, id_ranks=id_ranks) for name, texts in documents.items()}


def fuse(engines, queries, depth):
    """The fused lists of a search to this depth."""
    return fuse_exact(engines, queries, {name: engine.search(queries[name], depth) for name, engine in engines.items()})


def all_scores(index: Index, queries):
    """{row: score} of each query, by a search to full depth."""
    return [dict(oracle.result_hits(*line)) for line in zip(*index.search(queries, max(len(index), 1)), strict=True)]


def score_if_not_found(index: Index, queries, line):
    """The score of a document that is not retrieved: 0 if the query has no tokens at all."""
    return 0.0 if isinstance(queries, MultiVector) and queries.starts[line] == queries.starts[line + 1] else index.score_if_not_found


@pytest.mark.parametrize("kind", ENGINES)
@given(seed=st.integers(0, 9999), chosen=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 8)), max_size=20))
@settings(deadline=None, max_examples=40)
def test_pairs_score_the_very_number_of_the_search(kind, seed, chosen):
    queries, index = random_texts(kind, 4, seed), build_index({kind: random_texts(kind, 9, seed + 1)})[kind]
    expected, scores = all_scores(index, queries), index.score_pairs(queries, *np.array(chosen, dtype=np.int64).reshape(-1, 2).T)
    assert scores.dtype == np.float32
    for (query, row), score in zip(chosen, scores.tolist(), strict=True):
        assert score == expected[query].get(row, score_if_not_found(index, queries, query))


@given(
    seed=st.integers(0, 9999),
    names=st.lists(st.sampled_from(sorted(ENGINES)), min_size=2, max_size=4, unique=True),
    count=st.integers(1, 14),
    depth=st.integers(1, 15),
    random=st.randoms(use_true_random=False),
)
@settings(deadline=None, max_examples=60)
def test_sums_are_those_over_all_documents_and_so_are_their_ranks_in_full_lists(seed, names, count, depth, random):
    id_ranks = random.sample(range(count), count)
    engines = build_index({name: random_texts(name, count, seed + 1) for name in names}, np.array(id_ranks))
    queries = {name: random_texts(name, 5, seed) for name in names}
    rows, scores = fuse(engines, queries, depth)
    full = {name: all_scores(engine, queries[name]) for name, engine in engines.items()}
    for line in range(5):
        experts = [full[name][line] for name in names]
        others = [score_if_not_found(engines[name], queries[name], line) for name in names]
        everything = {row: score for row, score in oracle.sum_experts(experts, others).items() if score > -np.inf}
        hits, expected = oracle.result_hits(rows[line], scores[line]), oracle.top_rows(everything, id_ranks, min(depth, count))
        assert all(everything[row] == score for row, score in hits)
        assert hits == expected or depth < count


def test_by_hand():
    """Documents 0, 1, 2; each list has two, and document 2 is best by the sum although it is second in both."""
    documents = {"global": torch.tensor([[9.0], [0.0], [8.0]]), "lexical": torch.tensor([[0.0], [9.0], [8.0]])}
    engines = build_index({"global": Dense(documents["global"]), "lexical": Sparse.from_matrix(documents["lexical"])})
    queries = {"global": Dense(torch.ones(1, 1)), "lexical": Sparse.from_matrix(torch.ones(1, 1))}
    assert [column.tolist() for column in fuse(engines, queries, 2)] == [[[2, 1]], [[16.0, 9.0]]]


def test_indexes_without_documents_give_nothing():
    engines = build_index({"global": Dense(torch.zeros(0, 3)), "lexical": Sparse.from_matrix(torch.zeros(0, TERMS))})
    assert fuse(engines, {name: random_texts(name, 2, 0) for name in engines}, 5)[0].shape == (2, 0)


def test_an_engine_that_cannot_score_chosen_documents_says_so(monkeypatch):
    monkeypatch.setattr(Flat, "_score_pairs", Index._score_pairs)
    index = build_index({"global": random_texts("global", 3, 0)})["global"]
    with pytest.raises(UsageError, match="engine flat cannot score documents that it did not find, as exact-sum needs"):
        index.score_pairs(random_texts("global", 1, 0), np.array([0]), np.array([1]))
