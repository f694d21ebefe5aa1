"""Parameters of an architecture by owner, and those active for a text, from names and shapes alone."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

EXPERT_NAME = re.compile(r"(?P<prefix>.+)\.experts\.(?P<number>\d+)\.(?P<rest>.+)")
QUERY_WEIGHTS = ".query_weights"  # of tokens, in place of an encoder
EXPERT_PREFIXES = ("towers.", "private_embeddings.", "heads.")
ROUTER_NAMES = ("router.", ".gate.", ".noise.")


@dataclass(frozen=True)
class Mixture:
    """Experts whose parameter names start with `prefix`, and which of them are active for a query and for a document.

    `once_per_text`: experts run once per text instead of once per token. `single`: it has one expert only.
    """

    prefix: str
    active_experts: Mapping[str, tuple[int, ...]]
    once_per_text: bool = False
    single: bool = False


@dataclass(frozen=True)
class ParameterAccount:
    """`shapes` of distinct parameters by name; `representation_kinds`: expert -> kind.

    `unused_prefixes`: name prefixes of parameters unused at inference.
    """

    shapes: Mapping[str, tuple[int, ...]]
    representation_kinds: Mapping[str, str]
    mixtures: tuple[Mixture, ...] = ()
    unused_prefixes: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        return sum(map(math.prod, self.shapes.values()))

    def active(self, side: str) -> int:
        """Number of parameters active for one text of a side; embedding tables count whole, as in papers."""
        return self._count(name for name in self.shapes if self.is_active(name, side))

    def groups(self) -> dict[str, int]:
        """The number of parameters by owner: shared ones, then those of each expert, then of routers."""
        names: dict[str, list[str]] = {}
        for name in self.shapes:
            names.setdefault(self.find_owner(name), []).append(name)
        first = ("shared", *self.representation_kinds)
        order = sorted(names, key=lambda owner: first.index(owner) if owner in first else len(first))
        return {owner: self._count(names[owner]) for owner in order}

    def _count(self, names: Iterable[str]) -> int:
        return sum(math.prod(self.shapes[name]) for name in names)

    def find_owner(self, name: str) -> str:
        """`shared`, `router`, the expert whose representation the parameter serves, or the number of a mixture's expert."""
        if name.startswith(EXPERT_PREFIXES):
            return name.split(".")[1]
        if self._has_separate_encoders and name.startswith(("encoder.", "document_encoder.")):
            return f"{'document' if name.startswith('document') else 'query'} encoder"
        if (mixture := self._find_mixture(name)) is not None:
            return f"{'block expert' if mixture[0].once_per_text else 'expert'} {mixture[1]}"
        if any(part in f".{name}" for part in ROUTER_NAMES):
            return "router"
        sparse = [expert for expert, kind in self.representation_kinds.items() if kind == "sparse"]
        if ".vocabulary_head." in name and len(sparse) == 1:
            return sparse[0]
        private = {one.split(".")[1] for one in self.shapes if one.startswith("private_embeddings.")}
        if private and name.startswith("encoder.embeddings."):
            return next(expert for expert in self.representation_kinds if expert not in private)
        return "shared"

    def is_active(self, name: str, side: str) -> bool:
        """Whether this parameter is used for a text of a side."""
        if name.startswith(self.unused_prefixes) or (".vocabulary_head." in name and "sparse" not in self.representation_kinds.values()):
            return False
        if name.endswith(QUERY_WEIGHTS):
            return side == "query"
        if side == "query" and (
            self._experts_without_query_encoder.issuperset(self.representation_kinds)
            or self.find_owner(name) in self._experts_without_query_encoder
        ):
            return False
        of_document = name.startswith("document_encoder.")
        if self._has_separate_encoders and name.startswith(("encoder.", "document_encoder.")) and of_document != (side == "document"):
            return False
        mixture = self._find_mixture(name)
        return mixture is None or mixture[1] in mixture[0].active_experts[side]

    @property
    def _experts_without_query_encoder(self) -> set[str]:
        """Experts whose queries no encoder reads."""
        return {expert for expert in self.representation_kinds if f"heads.{expert}{QUERY_WEIGHTS}" in self.shapes}

    @property
    def _has_separate_encoders(self) -> bool:
        return any(name.startswith("document_encoder.") for name in self.shapes)

    def _find_mixture(self, name: str) -> tuple[Mixture, int] | None:
        """The mixture and the number of the expert that owns this parameter; None if experts share it (one normalisation for all)."""
        match = EXPERT_NAME.fullmatch(name)
        if match is None:
            return None
        same_in_experts = (f"{match['prefix']}.experts.{number}.{match['rest']}" for number in (0, 1))
        mixture = next((one for one in self.mixtures if one.prefix == match["prefix"]), None)
        is_own = mixture is not None and (mixture.single or all(twin in self.shapes for twin in same_in_experts))
        return (mixture, int(match["number"])) if mixture is not None and is_own else None
