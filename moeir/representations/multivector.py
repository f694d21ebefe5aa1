"""One vector per token; similarity is late interaction: each query token finds its best document token (CAME eq. 5)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from moeir.kernels.late_interaction import late_interaction
from moeir.kernels.precision import full_precision
from moeir.representations.base import PackedRepresentation
from moeir.representations.evidence import Evidence, ExplainedDocuments, Pieces, round_score


def ward_clusters(points: np.ndarray, count: int) -> np.ndarray:
    """Cluster of each point by Ward's linkage: [M, D] -> int64 [M] in 0..count-1, numbered by first point.

    >>> ward_clusters(np.array([[0.0], [5.0], [0.1], [5.2]]), 2).tolist()
    [0, 1, 0, 1]
    """
    if count == len(points):
        return np.arange(count)
    from scipy.cluster.hierarchy import linkage  # takes half a second, which a search need not wait for

    parents = np.arange(2 * len(points))
    for number, (left, right) in enumerate(linkage(points, "ward")[: len(points) - count, :2].astype(int), len(points)):
        parents[[left, right]] = number
    roots = np.arange(len(points))
    while (parents[roots] != roots).any():
        roots = parents[roots]
    _, first_points, labels = np.unique(roots, return_index=True, return_inverse=True)
    cluster_ids: np.ndarray = first_points.argsort().argsort()[labels]
    return cluster_ids


@dataclass(frozen=True)
class MultiVector(PackedRepresentation):
    """Text b has vectors[starts[b]:starts[b+1]]. vectors [T, D], starts [B+1].

    No text has more than `max_length` vectors; None if unknown without a device sync.
    """

    vectors: Tensor
    starts: Tensor
    max_length: int | None = None
    kind: ClassVar[str] = "multivector"
    files: ClassVar[dict[str, str]] = {"vectors": "float16"}
    default_engine: ClassVar[str] = "maxsim"
    exported_as: ClassVar[str | None] = "multivector"
    pruning_options: ClassVar[tuple[str, ...]] = ("pool_factor",)

    def scores(self, documents: Self) -> Tensor:
        with full_precision(self.vectors.device):
            return late_interaction(self.vectors.float(), self.starts, documents.vectors.float(), documents.starts, documents.max_length)

    def score_pairs(self, documents: Self) -> Tensor:
        rows = torch.arange(len(self), device=self.starts.device)
        pairs = [self.select(rows[i : i + 1]).scores(documents.select(rows[i : i + 1]))[0] for i in range(len(self))]
        return torch.cat(pairs) if pairs else self.vectors.new_zeros(0)

    def prune(self, options: Mapping[str, Any]) -> Self:
        """Reduce M vectors of a text to ⌈M / pool_factor⌉ cluster means, in the order of their first tokens (Clavié et al. 2024).

        Clusters come from Ward's linkage of the normalised vectors; means are not normalised again.
        """
        if (factor := options.get("pool_factor", 1)) == 1:
            return self
        vectors, bounds = self.vectors.float().cpu(), self.starts.tolist()
        directions = torch.nn.functional.normalize(vectors).double().numpy()
        cluster_ids, starts = [np.empty(0, np.int64)], [0]
        for first, last in pairwise(bounds):
            cluster_ids.append(ward_clusters(directions[first:last], -(-(last - first) // factor)) + starts[-1])
            starts.append(starts[-1] + -(-(last - first) // factor))
        cluster_of_vector = torch.from_numpy(np.concatenate(cluster_ids))
        sums = vectors.new_zeros(starts[-1], vectors.shape[1]).index_add(0, cluster_of_vector, vectors)
        means = sums / torch.bincount(cluster_of_vector, minlength=starts[-1])[:, None]
        return type(self)(means.to(self.vectors.device), torch.tensor(starts, device=self.starts.device))

    def drop_bounds(self) -> Self:
        return type(self)(self.vectors, self.starts)

    def explain(self, documents: ExplainedDocuments) -> list[Evidence]:
        """For each query token the best document token: its position among the vectors and its piece, if known, and the similarity."""
        vectors = self.vectors.detach().cpu()
        names = documents.query_pieces(len(vectors)) or [None] * len(vectors)
        evidence: list[Evidence] = []
        single_scores: np.ndarray | None = None
        for column, (stored, pieces) in enumerate(documents.token_vectors):
            if stored is not None:
                evidence.append({"tokens": _best_tokens(names, vectors.double().numpy(), stored.astype(np.float64), pieces)})
                continue
            if single_scores is None:
                single_scores = documents.score(MultiVector(vectors, torch.arange(len(vectors) + 1)))
            similarities = zip(names, single_scores[:, column], strict=True)
            evidence.append({"tokens": [{"query": name, "similarity": round_score(score)} for name, score in similarities]})
        return evidence

    def export_row(self, row: int) -> Any:
        return self.vectors[int(self.starts[row]) : int(self.starts[row + 1])].numpy()

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        bounds = [part.max_length for part in parts]
        longest = None if None in bounds else max(bound for bound in bounds if bound is not None)
        return replace(super().concatenate(parts), max_length=longest)


def _best_tokens(names: Sequence[str | None], query: np.ndarray, document: np.ndarray, pieces: Pieces) -> list[Evidence]:
    """query [L, D], document [M, D]; a document without tokens, which is never retrieved, has none."""
    if not len(document):
        return []
    similarity = query @ document.T
    evidence: list[Evidence] = []
    for row, position in enumerate(similarity.argmax(axis=1).tolist()):
        piece = {} if pieces is None else {"document": pieces[position]}
        evidence.append({"query": names[row], "position": position, **piece, "similarity": round_score(similarity[row, position])})
    return evidence
