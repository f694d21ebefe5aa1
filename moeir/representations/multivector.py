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
    """Cluster of each point by Ward's linkage: [M, D] -> int64 [M], at most `count` clusters, numbered by first point.

    >>> ward_clusters(np.array([[0.0], [5.0], [0.1], [5.2]]), 2).tolist()
    [0, 1, 0, 1]
    """
    from scipy.cluster.hierarchy import fcluster, linkage  # takes half a second, which a search need not wait for

    labels = fcluster(linkage(points, "ward"), count, "maxclust") if len(points) > 1 else np.zeros(len(points), dtype=np.int64)
    _, first_points, labels = np.unique(labels, return_index=True, return_inverse=True)
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

    def scores(self, documents: Self) -> Tensor:
        with full_precision(self.vectors.device):
            return late_interaction(self.vectors.float(), self.starts, documents.vectors.float(), documents.starts, documents.max_length)

    def score_pairs(self, documents: Self) -> Tensor:
        rows = torch.arange(len(self), device=self.starts.device)
        pairs = [self.select(rows[i : i + 1]).scores(documents.select(rows[i : i + 1]))[0] for i in range(len(self))]
        return torch.cat(pairs) if pairs else self.vectors.new_zeros(0)

    def prune(self, options: Mapping[str, int]) -> Self:
        """Reduce M vectors of a text to at most ⌈M / pool_factor⌉ cluster means, in the order of their first tokens (Clavié et al. 2024).

        Clusters come from Ward's linkage of the normalised vectors; means are not normalised again.
        """
        if (factor := options.get("pool_factor", 1)) == 1:
            return self
        vectors, bounds = self.vectors.float().cpu(), self.starts.tolist()
        directions = torch.nn.functional.normalize(vectors).double().numpy()
        cluster_ids, starts = [np.empty(0, np.int64)], [0]
        for first, last in pairwise(bounds):
            own = ward_clusters(directions[first:last], -(-(last - first) // factor))
            cluster_ids.append(own + starts[-1])
            starts.append(starts[-1] + int(own.max(initial=-1)) + 1)
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
        return [
            {} if stored is None else {"tokens": _best_tokens(names, vectors.double().numpy(), stored.astype(np.float64), pieces)}
            for stored, pieces in documents.token_vectors
        ]

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
