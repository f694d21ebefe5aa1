"""Projections of vectors to two or three dimensions for plots."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from sklearn.manifold import TSNE

from moeir import variants
from moeir.analysis.result import AnalysisResult, Plot
from moeir.errors import UsageError

Array: TypeAlias = "np.ndarray[Any, Any]"


def pca(vectors: Array, dimensions: int, seed: int = 42) -> Array:
    """Principal components: the directions of the largest variance.

    vectors [n, D] -> [n, dimensions]; the largest weight of each axis is positive, so that the layout is reproducible.
    Pearson 1901.

    >>> pca(np.array([[0.0, 0.0], [3.0, 3.0], [6.0, 6.0]]), 2).round(4)
    array([[-4.2426,  0.    ],
           [ 0.    ,  0.    ],
           [ 4.2426,  0.    ]])
    """
    centred = vectors.astype(np.float64) - vectors.mean(axis=0, dtype=np.float64)
    _, _, axes = np.linalg.svd(centred, full_matrices=False)
    axes = axes[:dimensions]
    largest = np.abs(axes).argmax(axis=1)
    axes = axes * np.sign(axes[np.arange(len(axes)), largest])[:, None]
    coordinates: Array = centred @ axes.T + 0.0
    padded: Array = np.pad(coordinates, ((0, 0), (0, dimensions - coordinates.shape[1])))
    return padded


def tsne(vectors: Array, dimensions: int, seed: int = 42, *, perplexity: float = 30.0) -> Array:
    """t-SNE over cosine distances, which keeps neighbours together, initialised with principal components.

    vectors [n, D] -> [n, dimensions]. Distances between groups mean little; `perplexity` is roughly the number of neighbours.
    Van der Maaten and Hinton 2008.
    """
    if not 1 <= perplexity < len(vectors):
        raise UsageError(f"tsne:perplexity={perplexity:g}: expected 1 to less than the number of points, {len(vectors)}")
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    units = (vectors / np.where(norms > 0, norms, 1.0)).astype(np.float32)  # their squared distances are twice the cosine distances
    rate = max(10.0, len(units) / 48)  # Belkina et al. 2019 in scikit-learn's scale, whose minimum, 50, scatters few
    initial = _initial_layout(units, dimensions)
    model = TSNE(dimensions, perplexity=perplexity, init=initial, learning_rate=rate, random_state=seed, n_jobs=1)
    return np.asarray(model.fit_transform(units), dtype=np.float64)


def _initial_layout(units: Array, dimensions: int) -> Array:
    """Principal components scaled to the small initial spread that t-SNE needs."""
    coordinates = pca(units, dimensions)
    initial: Array = (coordinates / max(coordinates[:, 0].std(), 1e-12) * 1e-4).astype(np.float32)
    return initial


def analyze_projection(
    texts: Sequence[tuple[str, str]], groups: Sequence[str], vectors: Array, spec: str, dimensions: int, seed: int
) -> AnalysisResult:
    """Texts (side, id) with their vectors [n, D] projected, as `spec` says, to two or three dimensions; `groups` are their colours."""
    if len(texts) <= dimensions:
        raise UsageError(f"analyze projection: expected more than {dimensions} texts, found {len(texts)}")
    points = variants.bind_variant("analysis.projection", spec)(vectors, dimensions, seed).tolist()
    rows = [[side, name, group, *point] for (side, name), group, point in zip(texts, groups, points, strict=True)]
    marks = sorted(((spec, group, *point) for group, point in zip(groups, points, strict=True)), key=lambda mark: str(mark[1]))
    return AnalysisResult(["side", "id", "group", *"xyz"[:dimensions]], rows, Plot("points", marks))
