import numpy as np
import pytest

from moeir.analysis.projection import pca, tsne
from moeir.errors import UsageError
from tests.oracles import analysis


def clouds(seed=0):
    """Three clouds of fifteen vectors [45, 8] around far directions."""
    chance = np.random.default_rng(seed)
    return np.concatenate([np.eye(8)[cloud] * 5 + chance.normal(size=(15, 8)) * 0.2 for cloud in range(3)]).astype(np.float32)


def test_no_plane_keeps_more_of_the_spread_than_pca_which_does_not_turn_with_the_sign_and_pads_what_has_no_spread():
    vectors = clouds()
    spread = analysis.sum_squared_distances(pca(vectors, 2).tolist())
    chance = np.random.default_rng(1)
    for _ in range(30):
        plane = np.linalg.qr(chance.normal(size=(8, 2)))[0]
        assert analysis.sum_squared_distances((vectors @ plane).tolist()) <= spread * (1 + 1e-6)
    whole = analysis.sum_squared_distances(vectors.tolist())
    assert analysis.sum_squared_distances(pca(vectors, 8).tolist()) == pytest.approx(whole, rel=1e-5)
    assert pca(vectors, 2) == pytest.approx(pca(vectors[::-1], 2)[::-1], abs=1e-6)
    flat = pca(np.array([[1.0], [2.0], [4.0]]), 3)
    assert flat.shape == (3, 3) and not flat[:, 1:].any()


@pytest.mark.parametrize("dimensions", [2, 3])
def test_tsne_keeps_neighbours_and_is_the_same_each_time(dimensions):
    vectors = clouds()
    points = tsne(vectors, dimensions, perplexity=5.0)
    assert points.shape == (45, dimensions)
    near = analysis.nearest_neighbours(points.tolist(), 5)
    alike = [neighbour // 15 == number // 15 for number, neighbours in enumerate(near) for neighbour in neighbours]
    assert sum(alike) > 0.9 * len(alike)
    assert (tsne(vectors, dimensions, perplexity=5.0) == points).all()
    with pytest.raises(UsageError, match=r"tsne:perplexity=30: expected 1 to less than the number of points, 10"):
        tsne(clouds()[:10], 2)
