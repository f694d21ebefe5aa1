"""Kullback–Leibler and Jensen–Shannon divergence between queries and their documents, on random pairs of a query and a relevant document
(CoT-MoTE, appendix A.1).
"""

import random
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from scipy.spatial.distance import cdist
from scipy.special import logsumexp

from moeir.analysis.result import AnalysisResult, Plot
from moeir.errors import DataError
from moeir.records import qrels, texts

Array: TypeAlias = "np.ndarray[Any, Any]"


def estimate_divergences(queries: Array, documents: Array, *, bandwidth: float = 1.0) -> tuple[float, float]:
    """KL(queries ‖ documents) and JS of n pairs, in nats.

    queries, documents [n, D], row i of one with row i of the other. In the n × n cosine distances, row i is the point of query i and
    column j that of document j; each density is estimated at its own points (specs/cot_mote §5, reading B: n = 400, bandwidth 1).
    """
    distance = cosine_distances(queries, documents)
    of_queries, of_documents = kernel_log_weights(distance, bandwidth), kernel_log_weights(distance.T, bandwidth)
    return kullback_leibler(of_queries, of_documents), jensen_shannon(of_queries, of_documents)


def cosine_distances(queries: Array, documents: Array) -> Array:
    """1 - cosine of every query with every document: [n, D], [m, D] -> [n, m]. A zero vector has distance 1 to all.

    >>> cosine_distances(np.array([[2.0, 0.0]]), np.array([[1.0, 0.0], [0.0, 3.0], [-1.0, 0.0], [0.0, 0.0]]))
    array([[0., 1., 2., 1.]])
    """
    return 1.0 - _unit_vectors(queries) @ _unit_vectors(documents).T


def _unit_vectors(vectors: Array) -> Array:
    vectors = vectors.astype(np.float64)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(lengths > 0, lengths, 1.0)


def kernel_log_weights(points: Array, bandwidth: float) -> Array:
    """Logarithm of a Gaussian kernel density of n points at these same points, normalised to sum to 1: [n, D] -> [n].

    The normaliser of the density, n (2π)^(D/2) b^D, is the same at every point and cancels.

    >>> np.exp(kernel_log_weights(np.array([[0.0], [0.0], [100.0]]), 1.0))
    array([0.4, 0.4, 0.2])
    """
    densities = logsumexp(cdist(points, points, "sqeuclidean") / (-2.0 * bandwidth**2), axis=1)
    weights: Array = densities - logsumexp(densities)
    return weights


def kullback_leibler(first: Array, second: Array) -> float:
    """Σ p ln(p / q) of two distributions given by their logarithms [n].

    >>> kullback_leibler(np.log([0.5, 0.5]), np.log([0.25, 0.75]))
    0.1438
    """
    return float((np.exp(first) * (first - second)).sum())


def jensen_shannon(first: Array, second: Array) -> float:
    """Mean divergence of two distributions from the mean of both, given by their logarithms [n].

    >>> jensen_shannon(np.log([0.5, 0.5]), np.log([0.25, 0.75]))
    0.0338
    """
    middle = np.logaddexp(first, second) - np.log(2.0)
    return (kullback_leibler(first, middle) + kullback_leibler(second, middle)) / 2


def sample_pairs(queries: Path, corpus: Path, judgements: Path, count: int, seed: int) -> list[tuple[texts.Text, texts.Text]]:
    """Sample `count` pairs at random: a query and its document of the highest grade (the first if several)."""
    grades = {query: {name: grade for name, grade in graded.items() if grade > 0} for query, graded in qrels.read_qrels(judgements).items()}
    judged = {text.id: text for text in texts.read_texts(queries) if grades.get(text.id)}
    relevant = {document for query in judged for document in grades[query]}
    answers = {text.id: text for text in texts.read_texts(corpus, keep_empty=True) if text.id in relevant and text.content}
    pairs = []
    for query in sorted(judged):
        if present := [document for document in grades[query] if document in answers]:
            pairs.append((judged[query], answers[max(present, key=grades[query].__getitem__)]))
    if len(pairs) < count:
        count_note = f"{len(pairs)} queries have a relevant document with both texts in {queries} and {corpus}"
        raise DataError(f"{judgements}: {count_note}; expected {count}, as --pairs says; lower it")
    return random.Random(seed).sample(pairs, count)


def analyze_divergence(expert: str, queries: Array, documents: Array, bandwidth: float) -> AnalysisResult:
    """KL and JS divergence between an expert's vectors of queries and of their relevant documents [n, D]."""
    kl, js = estimate_divergences(queries, documents, bandwidth=bandwidth)
    title = "divergence of queries and documents"
    plot = Plot("bars", [(title, expert, "KL", kl), (title, expert, "JS", js)])
    return AnalysisResult(["expert", "pairs", "KL", "JS"], [[expert, len(queries), kl, js]], plot, number_format=".2e")
