"""Dense engines of faiss."""

import sys

import numpy as np
import pytest
import torch

from moeir.errors import ArtifactError, DataError, UsageError
from moeir.indexes.flat import Flat
from moeir.representations.dense import Dense

pytest.importorskip("faiss")
from moeir.indexes import faiss as engine
from moeir.indexes.faiss import Faiss
from tests.indexes.engine_checks import open_index, same_bytes


def random_vectors(count=2000, width=16, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(9, width, generator=generator), torch.randn(count, width, generator=generator).half()


def build_index(documents, id_ranks=None, *, kind=Faiss, **options):
    return open_index(kind(id_ranks, **options), Dense(documents))


def share_of(best, rows):
    """The mean share of the best rows that were found."""
    return np.mean([len(set(one) & set(other)) / len(one) for one, other in zip(best, rows, strict=True)])


@pytest.mark.parametrize("options", [
    {"factory": "Flat"}, {"factory": "HNSW16", "ef": 2000}, {"factory": "IVF8+SQ8", "nprobe": 8},
])  # fmt: skip
def test_rescored_hits_are_those_of_flat_where_nothing_is_left_out(options):
    queries, documents = random_vectors()
    id_ranks = np.random.default_rng(0).permutation(len(documents))
    index, exact = build_index(documents, id_ranks, rescore=True, **options), build_index(documents, id_ranks, kind=Flat)
    assert same_bytes(index.search(Dense(queries), 10), exact.search(Dense(queries), 10))


def test_product_quantisation_finds_most_and_rescoring_more():
    queries, documents = random_vectors()
    best, shares = build_index(documents, kind=Flat).search(Dense(queries), 10)[0], []
    for rescore in (False, True):
        index = open_index(Faiss(factory="IVF4+PQ8x4", nprobe=4, rescore=rescore), *map(Dense, documents.chunk(3)))
        shares.append(share_of(best, index.search(Dense(queries), 10)[0]))
    assert 0.2 < shares[0] < shares[1] and shares[1] > 0.6


@pytest.mark.parametrize("factory", ["HNSW16", "PCA8+HNSW16", "HNSW16+RFlat"])
@pytest.mark.parametrize("rescore", [False, True])
def test_a_graph_finds_as_many_documents_as_are_asked_for(factory, rescore):
    queries, documents = random_vectors()
    index = build_index(documents, factory=factory, rescore=rescore)
    assert all((index.search(Dense(queries), depth)[0] >= 0).all() for depth in (500, 1, 300))


def test_an_ef_below_the_depth_is_raised_to_it():
    queries, documents = random_vectors()
    best = build_index(documents, kind=Flat).search(Dense(queries), 400)[0]
    for ef in (15, 400):
        assert share_of(best, build_index(documents, factory="HNSW16", ef=ef).search(Dense(queries), 400)[0]) > 0.95


def test_pairs_are_scored_only_with_rescoring():
    queries, documents = random_vectors()
    pairs = np.array([0, 3]), np.array([5, 1999])
    exact, index = build_index(documents, kind=Flat), build_index(documents, factory="SQ8", rescore=True)
    assert index.score_pairs(Dense(queries), *pairs).tolist() == exact.score_pairs(Dense(queries), *pairs).tolist()
    with pytest.raises(UsageError, match="cannot score documents that it did not find"):
        build_index(documents, factory="SQ8").score_pairs(Dense(queries), *pairs)


def test_fewer_documents_than_asked_for_leave_blanks_and_none_find_nothing():
    queries, documents = random_vectors(count=3)
    rows, scores = build_index(documents, factory="Flat").search(Dense(queries), 10)
    assert rows.shape == (9, 3) and np.isfinite(scores).all()
    assert build_index(documents[:0], factory="Flat").search(Dense(queries), 5)[0].shape == (9, 0)


@pytest.mark.parametrize(("options", "error", "words"), [
    ({"nprobe": 0}, UsageError, "faiss:nprobe=0: expected at least 1"),
    ({"factory": "Nonsense"}, UsageError, "^faiss:factory=Nonsense: faiss rejects it for dimension 16: could not parse"),
    ({"nprobe": 4}, UsageError, "faiss:factory=Flat: has no option nprobe; remove nprobe=4"),
    ({"ef": 4}, UsageError, "faiss:factory=Flat: has no option ef; remove ef=4"),
    ({"factory": "IVF4096+Flat"}, DataError, r"faiss:factory=IVF4096\+Flat: cannot be trained on 2000 vectors: .*choose a smaller one"),
])  # fmt: skip
def test_wrong_options_are_refused(options, error, words):
    queries, documents = random_vectors()
    with pytest.raises(error, match=words):
        build_index(documents, **{"factory": "Flat"} | options).search(Dense(queries), 1)


def test_what_is_wrong_is_refused(tmp_path, monkeypatch):
    index = Faiss(factory="Flat")
    index.add(Dense(random_vectors()[1]))
    index.save(tmp_path)
    opened = Faiss.open(tmp_path)
    with pytest.raises(ArtifactError, match="dimension 3, but the index holds dimension 16"):
        opened.search(Dense(torch.ones(1, 3)), 1)
    with pytest.raises(DataError, match="query 1: NaN"):
        opened.search(Dense(torch.tensor([[1.0] * 16, [float("nan")] * 16])), 1)
    content = (tmp_path / "faiss.index").read_bytes()
    (tmp_path / "faiss.index").write_bytes(content[: len(content) // 2])
    with pytest.raises(ArtifactError, match="damaged faiss index"):
        Faiss.open(tmp_path)
    monkeypatch.setattr(engine, "faiss", None)
    with pytest.raises(UsageError, match=r"pip install 'moeir\[cpu\]'"):
        Faiss()


def test_the_library_is_not_the_file_of_the_same_name():
    assert sys.modules["faiss"] is not engine and engine.faiss is sys.modules["faiss"]
