"""One vector a token, and its term; similarity is late interaction between tokens of the same term (COIL, Gao et al. 2021)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from moeir.kernels.exact_match import best_matches
from moeir.kernels.pairs import products
from moeir.representations.base import Representation, cumulate, full_precision, spans


@dataclass(frozen=True)
class ExactMatch(Representation):
    """Text b has tokens starts[b]:starts[b+1]; it may have none. terms [T], vectors [T, D], starts [B+1].

    score = Σ over query tokens of the largest inner product with a document token of the same term, at least 0 (COIL, eq. 3). Only pairs
    of the same term are multiplied, and for the gradient only the winners are kept.
    """

    terms: Tensor
    vectors: Tensor
    starts: Tensor
    kind: ClassVar[str] = "exact-match"
    files: ClassVar[dict[str, str]] = {"terms": "int32", "vectors": "float16"}

    def __len__(self) -> int:
        return len(self.starts) - 1

    def owners(self) -> Tensor:
        """[T] the text of each token."""
        texts = torch.arange(len(self), device=self.starts.device)
        return torch.repeat_interleave(texts, self.starts.diff(), output_size=len(self.terms))

    def scores(self, documents: Self) -> Tensor:
        found, query, document = self._matches(documents, self.terms.long(), documents.terms.long())
        places = self.owners()[query] * len(documents) + documents.owners()[document]
        return found.new_zeros(len(self) * len(documents)).index_add(0, places, found).view(len(self), len(documents))

    def paired(self, documents: Self) -> Tensor:
        terms = 1 + max((int(part.terms.max()) for part in (self, documents) if len(part.terms)), default=0)
        mine, theirs = (part.owners() * terms + part.terms.long() for part in (self, documents))  # tokens meet within their pair only
        found, query, _ = self._matches(documents, mine, theirs)
        return found.new_zeros(len(self)).index_add(0, self.owners()[query], found)

    def _matches(self, documents: Self, mine: Tensor, theirs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Scores [pairs] of the matches that count, and their tokens on either side."""
        with full_precision(self.vectors.device):
            left, right = self.vectors.float(), documents.vectors.float()
            query, document = best_matches(left, mine, right, theirs, documents.owners())
            return products(left, right, query, document).relu(), query, document

    def select(self, rows: Tensor, *, permutation: bool = False) -> Self:
        places, starts = spans(self.starts, rows, len(self.terms) if permutation else None)
        return replace(self, terms=self.terms[places], vectors=self.vectors.index_select(0, places), starts=starts)

    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        return replace(self, terms=change(self.terms), vectors=change(self.vectors), starts=change(self.starts))

    def scaled(self, factor: float) -> Self:
        return replace(self, vectors=self.vectors * factor)

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        starts = cumulate(torch.cat([part.starts.diff() for part in parts]))
        return cls(torch.cat([part.terms for part in parts]), torch.cat([part.vectors for part in parts]), starts)

    def columns(self) -> dict[str, Tensor]:
        return {"terms": self.terms, "vectors": self.vectors}

    def starts_of_rows(self) -> Tensor:
        return self.starts

    @classmethod
    def from_arrays(cls, arrays: dict[str, Tensor], starts: Tensor | None, facts: dict[str, int]) -> Self:
        assert starts is not None
        return cls(arrays["terms"], arrays["vectors"], starts)
