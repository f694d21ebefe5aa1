"""Search of any representation by scoring every document."""

import numpy as np
import pytest
import torch

from moeir.errors import DataError
from moeir.indexes.scan import Scan
from moeir.representations.dense import Dense
from moeir.representations.sparse import Sparse
from tests.indexes.engine_checks import open_index


def test_texts_that_share_no_term_are_not_found_and_score_0():
    index = open_index(Scan(), Sparse.from_matrix(torch.tensor([[1.0, 0, 0], [0, 2, 0], [3, 0, 0]])))
    queries = Sparse.from_matrix(torch.tensor([[2.0, 0, 0], [0, 0, 1]]))
    rows, scores = index.search(queries, 3)
    assert rows.tolist() == [[2, 0, -1], [-1, -1, -1]]
    assert scores[0].tolist() == [6.0, 2.0, -np.inf]
    assert index.score_pairs(queries, np.array([0, 0, 1]), np.array([0, 1, 2])).tolist() == [2.0, 0.0, 0.0]


def test_every_vector_is_found_whatever_its_score():
    index = open_index(Scan(), Dense(torch.tensor([[-1.0, 0], [0, 1], [2, 0]])))
    rows, scores = index.search(Dense(torch.tensor([[3.0, 0]])), 3)
    assert rows.tolist() == [[2, 1, 0]] and scores.tolist() == [[6.0, 0.0, -3.0]]
    assert index.score_pairs(Dense(torch.tensor([[3.0, 0]])), np.zeros(2, int), np.array([0, 1])).tolist() == [-3.0, 0.0]


def test_a_score_too_large_for_float32_is_refused():
    index = open_index(Scan(), Dense(torch.tensor([[6e4, -6e4], [1, 1]])))
    for query in ([3e38, 0.0], [3e38, 3e38]):
        with pytest.raises(DataError, match="query 0: NaN, infinity, or a score too large for float32"):
            index.search(Dense(torch.tensor([query])), 2)
