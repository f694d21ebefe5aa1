"""What an index need not hold of a document: its light terms, and token vectors that say the same as their likes."""

from dataclasses import asdict, dataclass
from typing import Any

from moeir.errors import UsageError
from moeir.representations.base import Representation
from moeir.representations.multivector import MultiVector
from moeir.representations.sparse import Sparse


@dataclass(frozen=True)
class Shortening:
    """How documents are shortened before they are written; as it stands, not at all. Queries never are."""

    terms: int | None = None
    least_weight: float | None = None
    pool_factor: int = 1

    def check_kinds(self, kinds: dict[str, str]) -> None:
        """UsageError for an option that none of a checkpoint's experts, expert -> kind, has a use for."""
        wanted = {"terms": "sparse", "least_weight": "sparse", "pool_factor": "multivector"}
        for name, value in self.facts().items():
            if wanted[name] not in kinds.values():
                has = ", ".join(f"{expert} {kind}" for expert, kind in kinds.items())
                raise UsageError(f"--{name.replace('_', '-')} {value:g}: is for {wanted[name]} experts; the checkpoint has {has}")

    def facts(self) -> dict[str, Any]:
        """The options that change something."""
        return {name: value for name, value in asdict(self).items() if value != getattr(NOTHING, name)}

    def __call__(self, documents: Representation) -> Representation:
        """Documents of one expert, shortened as their kind can be."""
        if isinstance(documents, Sparse) and (self.terms, self.least_weight) != (None, None):
            return documents.heaviest(self.terms, self.least_weight)
        if isinstance(documents, MultiVector) and self.pool_factor > 1:
            return documents.pooled(self.pool_factor)
        return documents


NOTHING = Shortening()
