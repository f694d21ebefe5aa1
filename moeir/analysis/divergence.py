"""Kullback–Leibler and Jensen–Shannon divergence between queries and their documents, on random pairs of a query and a relevant document
(CoT-MoTE, appendix A.1).
"""

import random
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from scipy.spatial.distance import cdist
from scipy.special import logsumexp, rel_entr, softmax

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
    of_queries, of_documents = kernel_weights(distance, bandwidth), kernel_weights(distance.T, bandwidth)
    middle = (of_queries + of_documents) / 2
    jensen_shannon = (rel_entr(of_queries, middle).sum() + rel_entr(of_documents, middle).sum()) / 2
    return float(rel_entr(of_queries, of_documents).sum()), float(jensen_shannon)


def cosine_distances(queries: Array, documents: Array) -> Array:
    """1 - cosine of every query with every document: [n, D], [m, D] -> [n, m]. A zero vector has distance 1 to all.

    >>> cosine_distances(np.array([[2.0, 0.0]]), np.array([[1.0, 0.0], [0.0, 3.0], [-1.0, 0.0], [0.0, 0.0]]))
    array([[0., 1., 2., 1.]])
    """
    distances: Array = np.nan_to_num(cdist(queries.astype(np.float64), documents.astype(np.float64), "cosine"), nan=1.0)
    return distances


def kernel_weights(points: Array, bandwidth: float) -> Array:
    """Gaussian kernel density of n points at these same points, normalised to sum to 1: [n, D] -> [n].

    The normaliser of the density, n (2π)^(D/2) b^D, is the same at every point and cancels.

    >>> kernel_weights(np.array([[0.0], [0.0], [100.0]]), 1.0)
    array([0.4, 0.4, 0.2])
    """
    weights: Array = softmax(logsumexp(cdist(points, points, "sqeuclidean") / (-2.0 * bandwidth**2), axis=1))
    return weights


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
