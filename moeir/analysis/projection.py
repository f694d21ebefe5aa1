"""Projections of vectors to two or three dimensions for plots."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from sklearn.manifold import TSNE

from moeir import variants
from moeir.analysis.result import AnalysisResult, Mark, Plot
from moeir.analysis.wins import RunValues, find_winner
from moeir.errors import UsageError
from moeir.records.texts import Text

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


@dataclass(frozen=True)
class ProjectedText:
    """A text to project; the number of its pair, and for a query and its hits, whether it is relevant to the query."""

    side: str
    id: str
    content: str
    pair: int | None = None
    relevant: bool | None = None


def pair_texts(pairs: Sequence[tuple[Text, Text]]) -> list[ProjectedText]:
    """The queries, then the documents of pairs."""
    return [
        ProjectedText(side, pair[column].id, pair[column].content, number)
        for column, side in enumerate(("query", "document"))
        for number, pair in enumerate(pairs, 1)
    ]


def query_with_hits(query: Text, hits: Sequence[Text], grades: Mapping[str, int]) -> list[ProjectedText]:
    """A query, then its hits with their relevance."""
    documents = [ProjectedText("document", hit.id, hit.content, relevant=grades.get(hit.id, 0) > 0) for hit in hits]
    return [ProjectedText("query", query.id, query.content, relevant=False), *documents]


def color_groups(texts: Sequence[ProjectedText], choices: Sequence[str | None], values: RunValues | None) -> list[str]:
    """The colour group of each text: with values of runs, the best run of a query; else the routed expert, else the side.

    Texts of pairs have the colour of their side, and so has a query among its hits.
    """
    if values is None:
        by_side = [text.pair is not None or (text.side == "query" and text.relevant is not None) for text in texts]
        return [text.side if sided else choice or text.side for text, sided, choice in zip(texts, by_side, choices, strict=True)]
    judged = next(iter(values.values()))
    return [find_winner(values, text.id) if text.side == "query" and text.id in judged else text.side for text in texts]


def analyze_projection(
    texts: Sequence[ProjectedText], panels: Mapping[str, tuple[Array, Sequence[str]]], spec: str, dimensions: int, seed: int
) -> AnalysisResult:
    """Texts projected, as `spec` says, to two or three dimensions: a panel for each title with the texts' vectors [n, D] and groups.

    The two texts of a pair are linked; of a query and its hits, the query is a cross, and relevant documents are ringed.
    """
    rows, marks, links = list[list[object]](), list[Mark](), list[Mark]()
    with_pairs, with_relevance = texts[0].pair is not None, texts[0].relevant is not None
    for title, (vectors, groups) in panels.items():
        points = list(map(tuple, variants.bind_variant("analysis.projection", spec)(vectors, dimensions, seed).tolist()))
        ends: dict[int | None, list[tuple[float, ...]]] = {}
        for text, group, point in zip(texts, groups, points, strict=True):
            symbol = "ring" if text.relevant else "cross" if with_relevance and text.side == "query" else "dot"
            marks.append((title, group, symbol, *point))
            facts = [*([text.pair] if with_pairs else []), *([int(bool(text.relevant))] if with_relevance else [])]
            rows.append([*([title] if len(panels) > 1 else []), text.side, text.id, group, *facts, *point])
            ends.setdefault(text.pair, []).append(point)
        links += [(title, *pair) for pair in ends.values()] if with_pairs else []
    facts_columns = [*(["pair"] if with_pairs else []), *(["relevant"] if with_relevance else [])]
    columns = [*(["panel"] if len(panels) > 1 else []), "side", "id", "group", *facts_columns, *"xyz"[:dimensions]]
    return AnalysisResult(columns, rows, Plot("points", sorted(marks, key=lambda mark: str(mark[1])), links=links))
