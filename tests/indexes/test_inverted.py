"""Exact learned-sparse search."""

import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moeir.errors import ArtifactError, DataError
from moeir.indexes.inverted import Inverted
from moeir.indexes.sparse_rows import sparse_rows
from moeir.kernels import numba_cache
from moeir.representations.sparse import Sparse
from tests.oracles import search as oracle

pytestmark = pytest.mark.usefixtures("form")

VOCABULARY = 6
text = st.dictionaries(st.integers(0, VOCABULARY - 1), st.integers(-4, 8).map(lambda number: number / 8))
texts = st.lists(text, min_size=1, max_size=25)


def pack(texts, vocabulary=VOCABULARY):
    starts = torch.tensor([0, *np.cumsum([len(text) for text in texts])])
    terms = torch.tensor([term for text in texts for term in text], dtype=torch.int64)
    weights = torch.tensor([weight for text in texts for weight in text.values()], dtype=torch.float32)
    return Sparse(starts, terms, weights, vocabulary)


def build_index(documents, id_ranks=None):
    index = Inverted(id_ranks)
    index.add(documents)
    return index


def random_texts(count, terms, seed):
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.rand(count, terms, generator=generator)
    return Sparse.from_matrix(torch.where(matrix > 0.8, (matrix * 40).round() / 40, torch.zeros(())))


@given(texts, texts, st.integers(1, 30), st.sampled_from([64, 128]), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_search_is_a_full_sort_of_the_documents_that_share_a_term(queries, documents, depth, block, random):
    id_ranks = random.sample(range(len(documents)), len(documents))
    index = build_index(pack(documents), np.array(id_ranks))
    index.window = block
    rows, scores = index.search(pack(queries), depth)
    for line, query in enumerate(queries):
        expected = oracle.top_rows(oracle.sparse(query, documents), id_ranks, depth)
        assert oracle.result_hits(rows[line], scores[line]) == expected


def test_the_order_of_a_texts_terms_changes_nothing():
    generator = np.random.default_rng(0)
    weights = dict(zip(range(40), generator.random(40).tolist(), strict=True))
    ordered, shuffled = pack([weights], 40), pack([{term: weights[term] for term in generator.permutation(40).tolist()}], 40)
    assert build_index(ordered).search(shuffled, 1)[1] == build_index(shuffled).search(ordered, 1)[1]


def test_a_query_or_document_without_terms_finds_and_is_nothing():
    rows, scores = build_index(pack([{}, {1: 0.5}, {2: 0.0}])).search(pack([{}, {1: 1.0, 2: 1.0}, {1: 0.0}]), 3)
    assert rows.tolist() == [[-1, -1, -1], [1, -1, -1], [-1, -1, -1]]
    assert scores[1, 0] == 0.5


@pytest.mark.parametrize("documents", [[], [{}, {}]])
def test_an_index_without_postings_can_be_saved_and_searched(documents, tmp_path):
    index = build_index(pack(documents))
    index.save(tmp_path)
    for each in (index, Inverted.open(tmp_path)):
        assert each.search(pack([{0: 1.0}]), 3)[0].tolist() == [[-1] * len(documents)]


def test_what_is_wrong_is_refused(tmp_path):
    index = build_index(pack([{1: 1.0}]))
    for bad in (float("nan"), float("inf")):
        with pytest.raises(DataError, match="row 3: a weight is NaN or infinite"):
            index.add(pack([{0: 1.0}, {}, {2: 1.0, 3: bad}]))
    with pytest.raises(DataError, match="query 1: a term is outside the vocabulary"):
        index.search(pack([{}, {VOCABULARY: 1.0}]), 1)
    with pytest.raises(ArtifactError, match="vocabulary of 7, but the index holds one of 6"):
        index.search(pack([{0: 1.0}], vocabulary=7), 1)
    index.save(tmp_path)
    np.save(tmp_path / "terms.npy", np.zeros(5, np.uint16))
    with pytest.raises(
        ArtifactError, match=r"starts.npy: damaged: expected ascending offsets from 0 to 5 by engine.json and terms.npy, found 0 to 1"
    ):
        Inverted.open(tmp_path)


def test_the_loops_compile_where_no_cache_can_be_written(monkeypatch):
    def nowhere(*, cache=False, **options):
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return lambda function: function

    monkeypatch.setattr(numba, "njit", nowhere)
    assert numba_cache.njit_cached(nogil=True)(len)("abc") == 3


def test_the_seconds_spent_on_compiling_are_counted():
    before = numba_cache.read_compile_seconds()
    assert numba.njit(lambda number: number + 1)(1) == 2 and numba_cache.read_compile_seconds() > before


def test_a_search_leaves_the_number_of_threads_of_torch_alone() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        index = Inverted()
        index.add(Sparse.from_matrix(torch.eye(3)))
        index.search(Sparse.from_matrix(torch.eye(3)), 2)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("count", "vocabulary"), [(1, 205), (20, 205), (150, 2**16 + 205)])
def test_few_terms_and_many_are_summed_in_the_same_order(count, vocabulary):
    """Vocabularies of 16 and 32 bits."""
    generator = np.random.default_rng(count)
    documents = [dict(zip(range(200), generator.random(200).astype(np.float32).tolist(), strict=True)) for _ in range(70)]
    chosen = sorted(generator.permutation(205)[:count].tolist())  # the last ones are in no document
    query = dict(zip(chosen, generator.random(count).astype(np.float32).tolist(), strict=True))
    rows, scores = build_index(pack(documents, vocabulary)).search(pack([query], vocabulary), 60)
    expected = []
    for document in documents:
        total = 0.0
        for term in chosen:
            total += query[term] * document.get(term, 0.0)
        expected.append(np.float32(total))
    assert scores[0].tolist() == [expected[row] for row in rows[0]] == sorted(expected, reverse=True)[:60]


def test_rows_from_the_middle_are_checked_and_lose_their_zeros():
    texts = pack([{0: 1.0, 1: 2.0}, {2: 3.0}, {3: 0.0, 4: 5.0}, {}, {5: 6.0, 0: 7.0}])
    rows = sparse_rows(texts, 1, 5, 0, "row")
    assert [rows.starts.tolist(), rows.terms.tolist(), rows.weights.tolist()] == [[0, 1, 2, 2, 4], [2, 4, 5, 0], [3.0, 5.0, 6.0, 7.0]]
    texts.weights[-1] = float("nan")
    with pytest.raises(DataError, match="row 14: a weight is NaN or infinite"):
        sparse_rows(texts, 1, 5, 10, "row")
