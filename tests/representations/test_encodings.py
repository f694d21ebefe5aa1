"""Pruning of documents before indexing: top terms, minimum weight, pooling of similar tokens."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moeir.errors import UsageError
from moeir.representations.dense import Dense
from moeir.representations.encodings import Pruning
from moeir.representations.multivector import MultiVector, ward_clusters
from moeir.representations.sparse import Sparse
from tests.oracles import representations as oracles
from tests.representations.test_representations import random_texts, to_lists

quick = settings(deadline=None, max_examples=25)
seeds = st.integers(0, 10_000)


def test_the_heaviest_terms_by_hand():
    encoded = Sparse.from_matrix(torch.tensor([[0.5, 2.0, 0.0, 0.5, 1.0], [0.0, 0.0, 0.0, 0.0, 0.0], [0.1, 0.0, 0.0, 0.0, 0.0]]))
    assert to_lists(encoded.prune({"terms": 3})) == [{0: 0.5, 1: 2.0, 4: 1.0}, {}, {0: pytest.approx(0.1)}]
    assert to_lists(encoded.prune({"least_weight": 0.5})) == [{0: 0.5, 1: 2.0, 3: 0.5, 4: 1.0}, {}, {}]
    assert to_lists(encoded.prune({"terms": 1, "least_weight": 0.5})) == [{1: 2.0}, {}, {}]


@quick
@given(seed=seeds, most=st.none() | st.integers(1, 6), least=st.none() | st.floats(0.03125, 2.0, width=32))
def test_the_heaviest_terms_are_those_of_a_sort(seed, most, least):
    encoded = random_texts("sparse", 4, seed)
    options = {name: value for name, value in (("terms", most), ("least_weight", least)) if value is not None}
    assert to_lists(encoded.prune(options)) == [oracles.prune_terms(text, most, least) for text in to_lists(encoded)]


def test_pooling_by_hand():
    """Two tokens point up and one right, another text is one token: ⌈3/2⌉ and ⌈1/2⌉ vectors stay."""
    encoded = MultiVector(torch.tensor([[0.0, 2.0], [4.0, 0.0], [0.0, 4.0], [1.0, 1.0]]), torch.tensor([0, 3, 4]))
    assert to_lists(encoded.prune({"pool_factor": 2})) == [[[0.0, 3.0], [4.0, 0.0]], [[1.0, 1.0]]]
    assert to_lists(encoded.prune({"pool_factor": 9})) == [[[pytest.approx(4 / 3), 2.0]], [[1.0, 1.0]]]
    assert to_lists(encoded.prune({"pool_factor": 1})) == to_lists(encoded)


@quick
@given(seed=seeds, count=st.integers(2, 9), data=st.data())
def test_clusters_are_those_of_joining_the_two_that_cost_least_again_and_again(seed, count, data):
    points = np.random.default_rng(seed).normal(size=(count, 3))
    cluster_count = data.draw(st.integers(1, count))
    assert ward_clusters(points, cluster_count).tolist() == oracles.ward_clusters(points, cluster_count)


def test_equal_tokens_lose_nothing_and_a_text_without_tokens_stays_one():
    encoded = MultiVector(torch.tensor([[1.0, 0.0]] * 4 + [[0.0, 1.0]] * 4), torch.tensor([0, 0, 8]))
    pooled = encoded.prune({"pool_factor": 4})
    assert to_lists(pooled) == [[], [[1.0, 0.0], [0.0, 1.0]]]
    query = MultiVector(torch.tensor([[0.6, 0.8], [0.8, 0.6]]), torch.tensor([0, 2]))
    assert torch.allclose(query.scores(pooled.select(torch.tensor([1]))), query.scores(encoded.select(torch.tensor([1]))))


def test_an_option_changes_its_own_kind_and_says_so():
    pruning = Pruning(terms=1, pool_factor=3)
    assert pruning.active_options() == {"terms": 1, "pool_factor": 3} and Pruning().active_options() == {}
    encoded = random_texts("dense", 3)
    assert pruning(encoded) is encoded and isinstance(encoded, Dense)
    assert all(len(text) <= 1 for text in to_lists(pruning(random_texts("sparse", 3))))
    encoded = random_texts("multivector", 5)
    assert [len(text) for text in to_lists(pruning(encoded))] == [-(-len(text) // 3) for text in to_lists(encoded)]
    assert Pruning()(random_texts("sparse", 3)).columns().keys() == {"terms", "weights"}
    with pytest.raises(UsageError, match="--terms 1: is for sparse experts; the checkpoint has global dense"):
        Pruning(terms=1).check_kinds({"global": "dense"})
    with pytest.raises(UsageError, match=r"--least-weight 0.5: is for sparse"):
        Pruning(least_weight=0.5).check_kinds({"global": "dense", "local": "multivector"})
    with pytest.raises(UsageError, match="--pool-factor 2: is for multivector experts"):
        Pruning(pool_factor=2).check_kinds({"lexical": "sparse"})
