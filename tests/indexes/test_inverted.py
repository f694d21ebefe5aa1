"""Exact learned-sparse search."""

import numba
import numpy as np
import pytest

from moeir.errors import DataError
from moeir.indexes.sparse_rows import sparse_rows
from moeir.kernels import numba_cache
from tests.indexes import engine_checks
from tests.indexes.engine_checks import VOCABULARY
from tests.indexes.engine_checks import pack_weights as pack

pytestmark = pytest.mark.usefixtures("form")


def build_index(documents):
    return engine_checks.build_index("inverted", documents)


def test_the_order_of_a_texts_terms_changes_nothing():
    generator = np.random.default_rng(0)
    weights = dict(zip(range(40), generator.random(40).tolist(), strict=True))
    ordered, shuffled = pack([weights], 40), pack([{term: weights[term] for term in generator.permutation(40).tolist()}], 40)
    assert build_index(ordered).search(shuffled, 1)[1] == build_index(shuffled).search(ordered, 1)[1]


def test_a_query_of_another_vocabulary_and_an_infinite_weight_are_refused():
    index = build_index(pack([{1: 1.0}]))
    with pytest.raises(DataError, match="row 3: a weight is NaN or infinite"):
        index.add(pack([{0: 1.0}, {}, {2: 1.0, 3: float("inf")}]))
    with pytest.raises(DataError, match="query 1: a term is outside the vocabulary"):
        index.search(pack([{}, {VOCABULARY: 1.0}]), 1)


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
