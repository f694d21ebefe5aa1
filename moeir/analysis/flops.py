"""Parameters of an architecture by owner, those active for a text, and its FLOPs, from names and shapes alone."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

EXPERT_NAME = re.compile(r"(?P<prefix>.+)\.experts\.(?P<number>\d+)\.(?P<rest>.+)")
QUERY_WEIGHTS = ".query_weights"  # of tokens, in place of an encoder
EXPERT_PREFIXES = ("towers.", "private_embeddings.", "heads.")
EMBEDDING_TABLES = (".words.weight", ".places.weight", ".kinds.weight")
ROUTER_NAMES = ("router.", ".gate.", ".noise.")


@dataclass(frozen=True)
class Mixture:
    """Experts whose parameter names start with `prefix`, and which of them are active for a query and for a document.

    `routed`: a router or chance selects, so that an active expert stands for any other. `once_per_text`: experts run once per text
    instead of once per token; `gate_once_per_text`: the gate does. `single`: it has one expert only.
    """

    prefix: str
    active_experts: Mapping[str, tuple[int, ...]]
    routed: bool = False
    once_per_text: bool = False
    gate_once_per_text: bool = False
    single: bool = False


@dataclass(frozen=True)
class ParameterGroup:
    """A group of parameters; `active` by side, None if a router decides."""

    name: str
    parameters: int
    active: Mapping[str, int | None]


@dataclass(frozen=True)
class ParameterAccount:
    """`shapes` of distinct parameters by name; `representation_kinds`: expert -> kind.

    `unused_prefixes`: name prefixes of parameters unused at inference; `windows`: attention prefix -> number of visible tokens on either
    side. `attention_widths`: the widths of attentions whose parameters do not show them, by prefix. `runs`: the experts of a layer, by
    prefix, that runs once for each of them.
    """

    shapes: Mapping[str, tuple[int, ...]]
    representation_kinds: Mapping[str, str]
    mixtures: tuple[Mixture, ...] = ()
    unused_prefixes: tuple[str, ...] = ()
    windows: Mapping[str, int] = field(default_factory=dict)
    attention_widths: Mapping[str, int] = field(default_factory=dict)
    runs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return sum(map(math.prod, self.shapes.values()))

    def active(self, side: str) -> int:
        """Number of parameters active for one text of a side; embedding tables count whole, as in papers."""
        return self._count(name for name in self.shapes if self.is_active(name, side))

    def groups(self, sides: tuple[str, ...]) -> list[ParameterGroup]:
        """Shared parameters, then those of each expert, then routers."""
        names: dict[str, list[str]] = {}
        for name in self.shapes:
            names.setdefault(self.find_owner(name), []).append(name)
        first = ("shared", *self.representation_kinds)
        order = sorted(names, key=lambda owner: first.index(owner) if owner in first else len(first))
        return [
            ParameterGroup(owner, self._count(names[owner]), {side: self._count_active(names[owner], side) for side in sides})
            for owner in order
        ]

    def _count_active(self, names: list[str], side: str) -> int | None:
        """Number of active parameters among those of an owner; None if a router decides."""
        if all(self._is_chosen(name, side) for name in names):
            return None
        return self._count(name for name in names if self.is_active(name, side))

    def _is_chosen(self, name: str, side: str) -> bool:
        """Whether a router decides if a parameter is active: its mixture has more experts than are active."""
        if (mixture := self._find_mixture(name)) is None or not mixture[0].routed:
            return False
        next_expert = f"{mixture[0].prefix}.experts.{len(mixture[0].active_experts[side])}."
        return any(one.startswith(next_expert) for one in self.shapes)

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

    def flops(self, side: str, length: int) -> int:
        """Floating-point operations for one text of `length` tokens: two per matrix element and multiplication.

        The attention of a layer costs 4 · H per pair of tokens that attend to each other; a sparse expert multiplies every token by the
        word embeddings.
        """
        count = 0
        for name, shape in self.shapes.items():
            if not self.is_active(name, side):
                continue
            if len(shape) == 2 and not name.endswith(EMBEDDING_TABLES):
                count += 2 * math.prod(shape) * self._multiplications(name, length) * self._run_count(name, side)
            prefix = name.removesuffix(".output.weight")
            if prefix.endswith(".attention"):
                count += 4 * shape[0] * attention_pairs(length, self.windows.get(prefix, length)) * self._run_count(name, side)
        for prefix, width in self.attention_widths.items():
            pairs = attention_pairs(length, self.windows.get(prefix, length)) * self._run_count(prefix, side)
            count += 4 * width * pairs * self.is_active(prefix, side)
        encoder = "document_encoder." if self._has_separate_encoders and side == "document" else "encoder."
        words = math.prod(self.shapes[f"{encoder}embeddings.words.weight"])
        unread = self._experts_without_query_encoder if side == "query" else set()
        return count + 2 * length * words * sum(kind == "sparse" and name not in unread for name, kind in self.representation_kinds.items())

    def _run_count(self, name: str, side: str) -> int:
        """How often a parameter's layer runs for a text of a side."""
        unread = self._experts_without_query_encoder if side == "query" else set()
        experts = next((experts for prefix, experts in self.runs.items() if f"{name}.".startswith(f"{prefix}.")), None)
        return 1 if experts is None else len(set(experts) - unread)

    def _multiplications(self, name: str, length: int) -> int:
        """Number of multiplications of a matrix for one text: once per token, or once."""
        owner = self.find_owner(name)
        if owner == "router":
            uses = [mixture for mixture in self.mixtures if mixture.routed and name.startswith(self._gate_prefix(mixture))]
            return sum(1 if mixture.gate_once_per_text else length for mixture in uses)
        mixture = self._find_mixture(name)
        once = mixture is not None and mixture[0].once_per_text
        pooled = ".pooler." in name or (name.startswith("heads.") and self.representation_kinds.get(owner) == "dense")
        return 1 if once or pooled else length

    def _gate_prefix(self, mixture: Mixture) -> str:
        """Prefix of the parameter names of a mixture's gate: its own, or that of the gate shared with other layers."""
        own = f"{mixture.prefix}.gate."
        return own if any(name.startswith(own) for name in self.shapes) else "router."


def attention_pairs(length: int, window: int) -> int:
    """Number of pairs of tokens at most `window` positions apart in a text of `length` tokens.

    >>> attention_pairs(4, 4), attention_pairs(4, 1), attention_pairs(4, 0)
    (16, 10, 4)
    """
    return sum(min(position + window, length - 1) - max(position - window, 0) + 1 for position in range(length))
