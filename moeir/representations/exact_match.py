"""One vector and one term per token; similarity is late interaction between tokens of the same term (COIL, Gao et al. 2021)."""

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from moeir.kernels.exact_match import find_best_matches
from moeir.kernels.gathered_products import gather_dot
from moeir.kernels.precision import full_precision
from moeir.representations.base import PackedRepresentation
from moeir.representations.evidence import Evidence, ExplainedDocuments, round_score


@dataclass(frozen=True)
class ExactMatch(PackedRepresentation):
    """Text b has tokens starts[b]:starts[b+1]; it may have none. terms [T], vectors [T, D], starts [B+1].

    score = Σ over query tokens of the largest inner product with a document token of the same term, at least 0 (COIL, eq. 3). Only pairs
    of the same term are multiplied, and only the best pairs are kept for the gradient.
    """

    terms: Tensor
    vectors: Tensor
    starts: Tensor
    kind: ClassVar[str] = "exact-match"
    files: ClassVar[dict[str, str]] = {"terms": "int32", "vectors": "float16"}
    default_engine: ClassVar[str] = "exact-match"
    positive_scores_only: ClassVar[bool] = True

    def scores(self, documents: Self) -> Tensor:
        match_scores, query, document = self._best_matches(documents, self.terms.long(), documents.terms.long())
        pair_indices = self.text_indices()[query] * len(documents) + documents.text_indices()[document]
        return match_scores.new_zeros(len(self) * len(documents)).index_add(0, pair_indices, match_scores).view(len(self), len(documents))

    def score_pairs(self, documents: Self) -> Tensor:
        terms = 1 + max((int(part.terms.max()) for part in (self, documents) if len(part.terms)), default=0)
        # tokens match within their pair only
        query_keys, document_keys = (part.text_indices() * terms + part.terms.long() for part in (self, documents))
        match_scores, query, _ = self._best_matches(documents, query_keys, document_keys)
        return match_scores.new_zeros(len(self)).index_add(0, self.text_indices()[query], match_scores)

    def _best_matches(self, documents: Self, query_keys: Tensor, document_keys: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Scores [pairs] of each query token's best match per document, with the token indices on both sides."""
        with full_precision(self.vectors.device):
            left, right = self.vectors.float(), documents.vectors.float()
            query, document = find_best_matches(left, query_keys, right, document_keys, documents.text_indices())
            return gather_dot(left, right, query, document).relu(), query, document

    def explain(self, documents: ExplainedDocuments) -> list[Evidence]:
        """For each query token with an exact match, the best product."""
        names = [documents.id_to_token(number) for number in self.terms.tolist()]
        products = documents.score(ExactMatch(self.terms.cpu(), self.vectors.cpu(), torch.arange(len(names) + 1)))
        return [
            {"tokens": [{"query": name, "similarity": round_score(score)} for name, score in zip(names, column, strict=True) if score > 0]}
            for column in products.T.tolist()
        ]
