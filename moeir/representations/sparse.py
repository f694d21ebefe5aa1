"""Weights of a few vocabulary terms per text; similarity is the inner product (CAME eq. 4)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from moeir.kernels.precision import full_precision
from moeir.representations.base import PackedRepresentation
from moeir.representations.evidence import Evidence, ExplainedDocuments, shared_terms


@dataclass(frozen=True)
class Sparse(PackedRepresentation):
    """Text b has terms[starts[b]:starts[b+1]], ascending, and their positive weights. starts [B+1], terms and weights [pairs]."""

    starts: Tensor
    terms: Tensor
    weights: Tensor
    vocabulary: int
    kind: ClassVar[str] = "sparse"
    files: ClassVar[dict[str, str]] = {"terms": "int32", "weights": "float32"}
    default_engine: ClassVar[str] = "inverted"
    exported_as: ClassVar[str | None] = "sparse"
    pruning_options: ClassVar[tuple[str, ...]] = ("terms", "least_weight")
    positive_scores_only: ClassVar[bool] = True
    value_column: ClassVar[str] = "weights"
    sizes: ClassVar[tuple[str, ...]] = ("vocabulary",)

    @classmethod
    def from_pairs(cls, texts: Tensor, terms: Tensor, weights: Tensor, count: int, vocabulary: int) -> Self:
        """From (text, term, weight) triples ordered by text, then term; `count` texts."""
        starts = torch.searchsorted(texts, torch.arange(count + 1, device=texts.device))
        return cls(starts, terms, weights, vocabulary)

    @classmethod
    def from_matrix(cls, matrix: Tensor) -> Self:
        """From weights [B, V]; entries that are not positive are dropped."""
        texts, terms = (~(matrix <= 0)).nonzero(as_tuple=True)
        return cls.from_pairs(texts, terms, matrix[texts, terms], *matrix.shape)

    def to_matrix(self) -> Tensor:
        """weights [B, V], float32; differentiable."""
        texts = self.text_indices()
        flat = torch.zeros(len(self) * self.vocabulary, device=self.weights.device)
        positions = texts * self.vocabulary + self.terms.long()
        return flat.index_copy(0, positions, self.weights.float()).view(len(self), self.vocabulary)

    def scores(self, documents: Self) -> Tensor:
        with full_precision(self.weights.device):
            return self.to_matrix() @ documents.to_matrix().T

    def score_pairs(self, documents: Self) -> Tensor:
        return (self.to_matrix() * documents.to_matrix()).sum(-1)

    def prune(self, options: Mapping[str, Any]) -> Self:
        """Keep the `terms` largest weights of each text (ties: the lower term) that are at least `least_weight`."""
        texts, weights = self.text_indices(), self.weights.abs()
        selected = ~(weights < options.get("least_weight", 0.0))
        if (max_terms := options.get("terms")) is not None:
            order = weights.argsort(descending=True, stable=True)
            order = order[texts[order].argsort(stable=True)]
            selected[order] &= torch.arange(len(order), device=order.device) - self.starts[texts] < max_terms
        return type(self).from_pairs(texts[selected], self.terms[selected], self.weights[selected], len(self), self.vocabulary)

    def drop_zero_weights(self) -> Self:
        is_positive = ~(self.weights <= 0)  # NaN stays, which is refused later
        if bool(is_positive.all()):
            return self
        texts, terms, weights = self.text_indices()[is_positive], self.terms[is_positive], self.weights[is_positive]
        return type(self).from_pairs(texts, terms, weights, len(self), self.vocabulary)

    def term_usage(self) -> tuple[Tensor, float] | None:
        sums = torch.zeros(self.vocabulary, device=self.weights.device).index_add(0, self.terms.long(), self.weights.abs())
        return sums / len(self), len(self.terms) / len(self)

    def explain(self, documents: ExplainedDocuments) -> list[Evidence]:
        """The terms that each document shares with the query, by descending product: both weights and their product."""
        weights = self.weights.detach().cpu().double().numpy()
        singles = Sparse(torch.arange(len(weights) + 1), self.terms.cpu(), torch.ones(len(weights)), self.vocabulary)
        return shared_terms([documents.id_to_token(number) for number in self.terms.tolist()], weights, documents.score(singles))

    def export_row(self, row: int) -> Any:
        pairs = slice(int(self.starts[row]), int(self.starts[row + 1]))
        return self.terms[pairs].numpy(), self.weights[pairs].numpy()
