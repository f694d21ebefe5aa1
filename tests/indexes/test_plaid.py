"""Late interaction with vectors in 2 bits per dimension."""

import json
import math

import numpy as np
import pytest
import torch

from moeir.errors import ArtifactError, DataError, UsageError
from moeir.indexes import residual_codec
from moeir.indexes.maxsim import MaxSim
from moeir.indexes.plaid import Plaid
from moeir.indexes.residual_codec import ResidualCodec, allocate_dimensions, nearest_centroids
from moeir.indexes.vector_store import VectorShards
from moeir.representations.multivector import MultiVector
from tests.indexes.engine_checks import same_bytes, scores_one_by_one


def random_texts(count=300, width=20, seed=0, topics=30, most=9):
    """Texts whose tokens cluster around a few topics, some without tokens; query tokens near tokens of texts."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, most, (count,), generator=generator)
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    centres = torch.randn(topics, width, generator=generator)
    vectors = centres[torch.randint(topics, (int(starts[-1]),), generator=generator)]
    vectors = torch.nn.functional.normalize(vectors + 0.6 * torch.randn(vectors.shape, generator=generator), dim=1).half()
    query_tokens = torch.randint(len(vectors), (40,), generator=generator)
    queries = vectors[query_tokens].float() + 0.1 * torch.randn(40, width, generator=generator)
    return MultiVector(queries, torch.tensor([0, 3, 3, 38, 40])), MultiVector(vectors, starts)


def build_index(documents, id_ranks=None, **options):
    index = Plaid(id_ranks, **options)
    index.add(documents)
    return index


def exhaustive_options(documents, **options):
    """Options for a search that skips nothing."""
    return {"centroids": 16, "nprobe": 16, "candidates": len(documents)} | options


def test_scores_are_those_of_the_decoded_vectors():
    queries, documents = random_texts()
    index = build_index(documents, **exhaustive_options(documents))
    rows, scores = index.search(queries, len(documents))
    decoded = [torch.from_numpy(index.token_vectors(row)) for row in range(len(documents))]
    expected = queries.scores(MultiVector(torch.cat(decoded), documents.starts))
    step = 0.02  # bound of the rounding error per query token, twice what is observed
    for line, tokens in ((0, 3), (2, 35), (3, 2)):
        is_hit = rows[line] >= 0
        assert is_hit.sum() == (documents.starts.diff() > 0).sum()
        assert np.allclose(expected[line].numpy()[rows[line][is_hit]], scores[line][is_hit], rtol=0, atol=step * tokens)
    assert (rows[1] == -1).all()


def test_rescored_hits_are_maxsims_when_nothing_is_left_out():
    queries, documents = random_texts(seed=1)
    id_ranks = np.random.default_rng(0).permutation(len(documents))
    exact = MaxSim(id_ranks)
    exact.add(documents)
    depth = len(documents)
    assert same_bytes(
        build_index(documents, id_ranks, rescore=True, **exhaustive_options(documents)).search(queries, depth), exact.search(queries, depth)
    )
    scores = build_index(documents, id_ranks, rescore=True).search(queries, 5)[1]
    assert scores.tolist() == exact.search(queries, 5)[1].tolist()


def test_lists_alone_say_what_the_best_centroids_are_worth():
    centroid_table = np.zeros((1, 3, 32), np.int16)
    centroid_table[0, :, 0], centroid_table[0, :, 1] = (9, 5, 1), (2, 4, 8)  # three centroids, two query tokens
    best = np.zeros((1, 32, 2), np.int64)
    best[0, 0], best[0, 1] = (0, 1), (2, 1)
    lists = [0, 3], [0, 1], [2]  # texts of each centroid; text 4 has none of them
    starts, rows = np.cumsum([0, *map(len, lists)]), np.array([row for texts in lists for row in texts], np.int32)
    hits, sums = residual_codec.gather_candidates(centroid_table, best, 2, starts, rows, 5)
    assert hits.tolist() == [0, 1, 2, 3] and sums.tolist() == [9 - 5, 0, 8 - 4, 9 - 5]


def test_by_default_100_roots_of_the_documents_are_candidates():
    queries, documents = random_texts(count=400, seed=4)
    by_default, *others = (
        build_index(documents, centroids=16, **options).search(queries, 5) for options in ({}, {"candidates": 2000}, {"candidates": 80})
    )
    assert [same_bytes(by_default, other) for other in others] == [True, False]


def test_ties_at_the_cut_go_to_the_highest_ids():
    values, id_ranks = np.array([3, 5, 3, 4, 3, 1], np.int32), np.array([4, 0, 5, 1, 2, 3])
    kept = (residual_codec.top_k(np.arange(6), values, id_ranks, count).tolist() for count in (1, 3, 4, 6))
    assert [*kept] == [[1], [1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3, 4, 5]]


def test_few_candidates_still_find_most():
    queries, documents = random_texts(count=1500, seed=2)
    exact = MaxSim()
    exact.add(documents)
    best = exact.search(queries, 10)[0]
    rows = build_index(documents, nprobe=32, candidates=100, rescore=True).search(queries, 10)[0]
    share = np.mean([len(set(best[line]) & set(rows[line])) / 10 for line in (0, 2, 3)])
    assert share >= 0.8


@pytest.mark.parametrize("rescore", [False, True])
def test_batches_shards_and_saving_change_no_byte(tmp_path, rescore):
    queries, documents = random_texts(seed=3)
    options = {"nprobe": 3, "candidates": 40, "rescore": rescore}
    expected = build_index(documents, **options).search(queries, 10)
    index = Plaid(**options)
    for part in torch.arange(len(documents)).chunk(3):
        index.add(documents.select(part))
    assert same_bytes(index.search(queries, 10), expected) and scores_one_by_one(index, queries, 10) == expected[1].tobytes()
    build_index(documents, **options).save(tmp_path / "one")
    index.save(tmp_path / "two")
    Plaid.open(tmp_path / "two").save(tmp_path / "three")
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert ("vectors.npy" in names) == rescore
    for other in ("two", "three"):
        assert [(tmp_path / other / name).read_bytes() for name in names] == [(tmp_path / "one" / name).read_bytes() for name in names]
        assert same_bytes(Plaid.open(tmp_path / other).search(queries, 10), expected)
    assert json.loads((tmp_path / "one" / "engine.json").read_text())["exact"] is False


@pytest.mark.parametrize("rescore", [False, True])
def test_pairs_score_as_they_are_found(rescore):
    queries, documents = random_texts(seed=4)
    index = build_index(documents, rescore=rescore)
    rows, scores = index.search(queries, 6)
    query, rank = np.nonzero(rows >= 0)
    assert index.score_pairs(queries, query, rows[query, rank]).tolist() == scores[query, rank].tolist()
    blank = int((documents.starts.diff() == 0).nonzero()[0])
    assert index.score_pairs(queries, np.array([1, 0]), np.array([3, blank])).tolist() == [0.0, -np.inf]


@pytest.mark.parametrize("count", [100, 300, 1200])
def test_the_default_number_of_centroids_is_the_power_of_two_nearest_to_four_roots(count, tmp_path):
    _, documents = random_texts(count=count)
    nearest = min((2**exponent for exponent in range(12)), key=lambda power: abs(math.log2(power / (4 * len(documents.vectors) ** 0.5))))
    build_index(documents).save(tmp_path)
    assert len(np.load(tmp_path / "centroids.npy")) == nearest


def test_a_vector_of_128_dimensions_takes_at_most_36_bytes(tmp_path):
    _, documents = random_texts(count=40, width=128)
    build_index(documents, centroids=8).save(tmp_path)
    stored_bytes = sum((tmp_path / f"{name}.npy").stat().st_size - 128 for name in ("codes", "leading", "residuals"))
    assert stored_bytes == 34 * len(documents.vectors)


@pytest.mark.parametrize("width", [1, 3, 8, 21])
def test_any_dimension_is_kept_and_decoded(width):
    shards, vectors = VectorShards(), torch.randn(900, width).half()
    shards.add(vectors, str)
    codec = ResidualCodec.train(shards, 40, 0)
    codes, residuals = codec.encode(vectors)
    assert residuals.shape == (900, -(-width // 4))
    error = vectors.float().numpy() - codec.decode(codes, residuals)
    assert np.square(error).sum() < 0.2 * vectors.float().square().sum()


def test_a_rotation_keeps_lengths_and_the_nearest_centroid_is_near():
    residuals = np.random.default_rng(0).normal(size=(200, 9)) * np.arange(1, 10)
    assert np.allclose(np.linalg.norm(residuals @ allocate_dimensions(residuals), axis=1), np.linalg.norm(residuals, axis=1), rtol=1e-5)
    assert np.square(residuals @ allocate_dimensions(residuals)).sum(axis=0).reshape(3, 8).sum(axis=1).argmax() == 0
    vectors, centroids = torch.randn(300, 6), torch.randn(17, 6)
    distances = torch.cdist(vectors, centroids)
    chosen = distances.gather(1, torch.from_numpy(nearest_centroids(vectors, centroids)).long()[:, None])[:, 0]
    assert (chosen <= distances.amin(dim=1) + 0.05).all()


def test_documents_without_any_token_make_an_index_that_finds_nothing(tmp_path):
    queries, _ = random_texts()
    index = build_index(MultiVector(torch.zeros(0, 20), torch.zeros(3, dtype=torch.int64)))
    index.save(tmp_path)
    for each in (index, Plaid.open(tmp_path)):
        assert (each.search(queries, 3)[0] == -1).all()


def test_what_is_wrong_is_refused(tmp_path):
    documents = random_texts()[1]
    for name in ("centroids", "nprobe", "candidates"):
        with pytest.raises(UsageError, match=f"plaid:{name}=0: expected at least 1"):
            Plaid(**{name: 0})
    index = build_index(documents)
    index.save(tmp_path)
    with pytest.raises(ArtifactError, match="takes no more documents"):
        index.add(documents)
    with pytest.raises(ArtifactError, match="dimension 4, but the index holds dimension 20"):
        index.search(MultiVector(torch.ones(1, 4), torch.tensor([0, 1])), 1)
    with pytest.raises(DataError, match="query 0: NaN"):
        index.search(MultiVector(torch.full((1, 20), float("nan")), torch.tensor([0, 1])), 1)
    np.save(tmp_path / "codes.npy", np.zeros(3, np.uint16))
    with pytest.raises(
        ArtifactError, match=r"codes.npy: damaged: expected uint16 or uint32 \[1234\] .*, found uint16 \[3\]; run moeir index again with"
    ):
        Plaid.open(tmp_path)
