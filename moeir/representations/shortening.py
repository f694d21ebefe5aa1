"""Writing document encodings: static pruning of terms and pooling of token vectors."""

from dataclasses import asdict, dataclass
from typing import Any

from moeir.errors import UsageError
from moeir.representations.base import Representation
from moeir.representations.multivector import MultiVector
from moeir.representations.sparse import Sparse


@dataclass(frozen=True)
class Pruning:
    """How documents are pruned before they are written; the defaults change nothing. Queries are never pruned."""

    terms: int | None = None
    least_weight: float | None = None
    pool_factor: int = 1

    def check_kinds(self, kinds: dict[str, str]) -> None:
        """UsageError for an option that applies to none of a checkpoint's experts (expert -> kind)."""
        required_kind = {"terms": "sparse", "least_weight": "sparse", "pool_factor": "multivector"}
        for name, value in self.active_options().items():
            if required_kind[name] not in kinds.values():
                available = ", ".join(f"{expert} {kind}" for expert, kind in kinds.items())
                flag = f"--{name.replace('_', '-')} {value:g}"
                raise UsageError(f"{flag}: is for {required_kind[name]} experts; the checkpoint has {available}")

    def active_options(self) -> dict[str, Any]:
        """The options that differ from their defaults."""
        return {name: value for name, value in asdict(self).items() if value != getattr(NO_PRUNING, name)}

    def __call__(self, documents: Representation) -> Representation:
        """Documents of one expert, pruned as their kind allows."""
        if isinstance(documents, Sparse) and (self.terms, self.least_weight) != (None, None):
            return documents.top_terms(self.terms, self.least_weight)
        if isinstance(documents, MultiVector) and self.pool_factor > 1:
            return documents.pool_tokens(self.pool_factor)
        return documents


NO_PRUNING = Pruning()
