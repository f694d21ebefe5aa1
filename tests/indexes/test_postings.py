"""Exact learned-sparse search over postings: what the scan rounds changes no result, and sums have one order."""

import numba
import numpy as np
import pytest
import torch

from moeir.artifacts import memmap
from moeir.errors import ArtifactError, DataError
from moeir.indexes import postings
from moeir.indexes.bm25 import Bm25
from moeir.indexes.inverted import Inverted
from moeir.indexes.sparse_rows import sparse_rows
from moeir.kernels import numba_cache
from moeir.representations.sparse import Sparse
from moeir.retrieval.latency import limit_threads
from tests.indexes.engine_checks import open_index, same_bytes
from tests.indexes.engine_checks import pack_weights as _pack
from tests.oracles import search as oracle
from tests.representations.test_representations import to_lists

pytestmark = pytest.mark.usefixtures("form")

VOCABULARY, DOCUMENTS = 200, 6000


def skewed_texts(count, seed, terms):
    """Texts with a few rare and many common terms, and mostly small weights."""
    generator = np.random.default_rng(seed)
    common = generator.permutation(1.0 / np.arange(1, VOCABULARY + 1))
    is_present = generator.random((count, VOCABULARY)) < np.minimum(common * terms, 0.9)
    return Sparse.from_matrix(torch.from_numpy(np.where(is_present, generator.exponential(0.5, is_present.shape), 0.0)).float())


def build_index(documents, window=2**16):
    return open_index(Inverted(), documents, window=window)


def test_what_the_scan_rounds_changes_nothing():
    documents, queries = skewed_texts(DOCUMENTS, 0, 12), skewed_texts(6, 1, 20)
    index, whole, plain = build_index(documents, 512), build_index(documents, 2**16), to_lists(documents)
    full = [oracle.top_rows(oracle.sparse(query, plain), range(DOCUMENTS), 300) for query in to_lists(queries)]
    for depth in (1, 10, 300):
        result = index.search(queries, depth)
        for *line, expected in zip(*result, full, strict=True):
            hits = oracle.result_hits(*line)
            assert [score for _, score in hits] == pytest.approx([score for _, score in expected[:depth]], rel=1e-6)
            assert {row for row, _ in hits} == {row for row, _ in expected[:depth]}
        assert same_bytes(whole.search(queries, depth), result)


def test_a_single_query_on_several_threads_finds_the_same():
    documents, queries = skewed_texts(DOCUMENTS, 2, 12), skewed_texts(1, 3, 20)
    index = build_index(documents, 512)
    both = index.search(queries, 50)
    with limit_threads(1):
        assert same_bytes(index.search(queries, 50), both)


def test_a_document_of_the_smallest_scan_is_found():
    documents, query = _pack([{0: 1.0}, {1: 1.0}]), _pack([{0: 1e6, 1: 1.0}])  # the second scans as 1 of 65,535
    assert [part.tolist() for part in build_index(documents, 64).search(query, 2)] == [[[0, 1]], [[1e6, 1.0]]]


def test_only_an_index_with_a_negative_weight_is_not_scanned():
    indexes = [open_index(Bm25(), ["a cat", "a dog"]), *(build_index(_pack([{0: weight}, {1: 1.0}]), 64) for weight in (0.5, -0.5))]
    assert [index._postings.signed for index in indexes] == [False, False, True]


def test_a_search_may_have_read_all_files_of_the_index(monkeypatch):
    index, sizes = build_index(skewed_texts(20, 0, 12), 64), []
    monkeypatch.setattr(memmap, "note_pages_read", sizes.append)
    index.search(skewed_texts(2, 1, 20), 3)
    assert sum(getattr(index._postings, name).nbytes for name in postings.DTYPES) in sizes


@pytest.mark.parametrize(
    ("name", "position", "value", "words"),
    [
        ("offsets", 0, 64, "documents below 64 in the window from document 0, found 64"),
        ("offsets", -1, 36, "documents below 36 in the window from document 64, found 36"),
        ("windows", 0, 2, "numbers from 0 to 1, found 0 to 2"),
        ("windows", 0, 1, "postings of each list's window"),
        ("begins", 1, 0, "postings of each list's window, found others"),
        ("begins", 0, 1, "lists from begins.npy that cover"),
        ("ends", 0, 0, "ends after begins.npy, within each list's window"),
        ("steps", 0, 0, "1 to 255, found 0|descending numbers in each list"),
    ],
)
def test_lists_outside_their_window_are_refused(tmp_path, name, position, value, words):
    index = Inverted()
    index.window = 64
    index.add(skewed_texts(100, 8, 12))
    index.save(tmp_path)
    assert len(Inverted.open(tmp_path)) == 100
    numbers = np.load(tmp_path / f"{name}.npy")
    numbers[position] = value
    np.save(tmp_path / f"{name}.npy", numbers)
    with pytest.raises(ArtifactError, match=words):
        Inverted.open(tmp_path)


@pytest.mark.parametrize("scale", [1e-25, 1e25])
def test_scores_that_float32_cannot_tell_apart_are_still_in_order(scale):
    documents, queries = skewed_texts(300, 9, 12).scale(scale), skewed_texts(2, 10, 20).scale(scale)
    rows, scores = build_index(documents, 64).search(queries, 40)
    assert (scores == (0.0 if scale < 1 else np.inf)).all()
    assert all((np.diff(line) < 0).all() for line in rows)


def test_negative_weights_and_repeated_terms_are_scored_as_they_are():
    index = build_index(_pack([{0: 1.0, 1: -3.0}, {0: 0.5}, {1: 2.0}], 2), 64)
    queries = Sparse(torch.tensor([0, 3]), torch.tensor([0, 1, 0]), torch.tensor([1.0, 1.0, 1.0]), 2)
    assert [part.tolist() for part in index.search(queries, 3)] == [[[2, 1, 0]], [[2.0, 1.0, -1.0]]]
    assert index.score_pairs(queries, np.array([0, 0, 0]), np.array([1, 0, 2])).tolist() == [1.0, -1.0, 2.0]


def test_the_order_of_a_texts_terms_changes_nothing():
    generator = np.random.default_rng(0)
    weights = dict(zip(range(40), generator.random(40).tolist(), strict=True))
    ordered, shuffled = _pack([weights], 40), _pack([{term: weights[term] for term in generator.permutation(40).tolist()}], 40)
    assert build_index(ordered).search(shuffled, 1)[1] == build_index(shuffled).search(ordered, 1)[1]


def test_a_term_outside_the_vocabulary_is_refused():
    with pytest.raises(DataError, match="query 1: a term is outside the vocabulary"):
        build_index(_pack([{1: 1.0}])).search(_pack([{}, {6: 1.0}]), 1)


def test_the_loops_compile_where_no_cache_can_be_written(monkeypatch):
    def nowhere(*, cache=False, **options):
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return lambda function: function

    monkeypatch.setattr(numba, "njit", nowhere)
    assert numba_cache.njit_cached(nogil=True)(len)("abc") == 3


@pytest.mark.parametrize(("count", "vocabulary"), [(1, 205), (20, 205), (150, 2**16 + 205)])
def test_few_terms_and_many_are_summed_in_the_same_order(count, vocabulary):
    """Vocabularies of 16 and 32 bits."""
    generator = np.random.default_rng(count)
    documents = [dict(zip(range(200), generator.random(200).astype(np.float32).tolist(), strict=True)) for _ in range(70)]
    chosen = sorted(generator.permutation(205)[:count].tolist())  # the last ones are in no document
    query = dict(zip(chosen, generator.random(count).astype(np.float32).tolist(), strict=True))
    rows, scores = build_index(_pack(documents, vocabulary)).search(_pack([query], vocabulary), 60)
    expected = []
    for document in documents:
        total = 0.0
        for term in chosen:
            total += query[term] * document.get(term, 0.0)
        expected.append(np.float32(total))
    assert scores[0].tolist() == [expected[row] for row in rows[0]] == sorted(expected, reverse=True)[:60]


def test_rows_from_the_middle_are_checked_and_lose_their_zeros():
    texts = _pack([{0: 1.0, 1: 2.0}, {2: 3.0}, {3: 0.0, 4: 5.0}, {}, {5: 6.0, 0: 7.0}])
    rows = sparse_rows(texts, 1, 5, 0, "row")
    assert [rows.starts.tolist(), rows.terms.tolist(), rows.weights.tolist()] == [[0, 1, 2, 2, 4], [2, 4, 5, 0], [3.0, 5.0, 6.0, 7.0]]
    texts.weights[-1] = float("nan")
    with pytest.raises(DataError, match="row 14: a weight is NaN or infinite"):
        sparse_rows(texts, 1, 5, 10, "row")
