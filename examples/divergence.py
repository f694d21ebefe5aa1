"""Kullback–Leibler and Jensen–Shannon divergence between an expert's vectors of queries and of documents (CoT-MoTE, appendix A.1).

    python examples/divergence.py --model ckpt/a --model ckpt/b --queries queries.jsonl --corpus corpus.jsonl --qrels dev.tsv

A line for each checkpoint, from random pairs of a query and a relevant document.
"""

import argparse
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from scipy.spatial.distance import cdist
from scipy.special import logsumexp, rel_entr, softmax

import moeir
from moeir.backbones.device import select_device
from moeir.errors import DataError, MoeirError, UsageError
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


def select_dense_expert(model: Any, name: str | None) -> str:
    """The dense expert of a checkpoint called `name`, or the only one."""
    dense = [expert for expert, kind in model.architecture.representation_kinds.items() if kind == "dense"]
    if name not in dense and (name is not None or len(dense) != 1):
        raise UsageError(f"--expert: expected one of {', '.join(dense)} ({model.path})")
    return name or dense[0]


def encode_texts(model: Any, some_texts: Sequence[texts.Text], side: str, expert: str) -> tuple[Array, list[str]]:
    """Vectors of length 1 of texts [n, D], and the expert that the first router of whole texts selects for each, or the side."""
    encoded = model.encode([text.content for text in some_texts], side)
    vectors = encoded[expert].vectors.cpu().numpy()
    router = next((output for output in encoded.routing.values() if len(output.probabilities) == len(some_texts)), None)
    names = [side] * len(some_texts) if router is None else [f"expert {number}" for number in router.probabilities.argmax(1).tolist()]
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12), names


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, action="append", required=True)
    for flag in ("--queries", "--corpus", "--qrels"):
        parser.add_argument(flag, type=Path, required=True)
    parser.add_argument("--expert", help="the dense expert, if there are several")
    parser.add_argument("--pairs", type=int, default=400)  # Ma et al. 2023, section 2.2
    parser.add_argument("--bandwidth", type=float, default=1.0, help="of the Gaussian kernel over cosine distances")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args(arguments)
    if options.pairs < 2 or not options.bandwidth > 0:
        parser.error("expected --pairs of 2 or more, and a --bandwidth above 0")
    pairs = sample_pairs(options.queries, options.corpus, options.qrels, options.pairs, options.seed)
    sys.stdout.write("model\texpert\tpairs\tKL\tJS\n")
    for path in options.model:
        model = moeir.open_checkpoint(path, select_device(options.device))
        expert = select_dense_expert(model, options.expert)
        queries, documents = (
            encode_texts(model, side, name, expert)[0] for name, side in zip(("query", "document"), zip(*pairs, strict=True), strict=True)
        )
        kl, js = estimate_divergences(queries, documents, bandwidth=options.bandwidth)
        sys.stdout.write(f"{path.name}\t{expert}\t{len(pairs)}\t{kl:.9g}\t{js:.9g}\n")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except MoeirError as problem:
        sys.exit(f"error: {problem}")
