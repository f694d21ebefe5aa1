"""Parameters of an architecture by owner, those active for a text, and its FLOPs, from names and shapes alone."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

EXPERT = re.compile(r"(?P<prefix>.+)\.experts\.(?P<number>\d+)\.(?P<rest>.+)")
OWNERS = ("towers.", "private_embeddings.", "heads.")
TABLES = (".words.weight", ".places.weight", ".kinds.weight")
ROUTERS = ("router.", ".gate.", ".noise.")


@dataclass(frozen=True)
class Mixture:
    """Experts whose parameter names start with `prefix`, and which of them are active for a query and for a document.

    `routed`: a router or chance selects, so that an active expert stands for any other. `once_per_text`: experts run once per text
    instead of once per token; `gate_once_per_text`: the gate does.
    """

    place: str
    runs: Mapping[str, tuple[int, ...]]
    routed: bool = False
    once: bool = False
    gate_once: bool = False


@dataclass(frozen=True)
class Part:
    """A group of parameters; `active` by side, None if a router decides."""

    name: str
    parameters: int
    active: Mapping[str, int | None]


@dataclass(frozen=True)
class Account:
    """`shapes` of distinct parameters by name; `representation_kinds`: expert -> kind.

    `unused_prefixes`: name prefixes of parameters unused at inference; `windows`: attention prefix -> number of visible tokens on either
    side; `cls_only_layers`: prefixes of layers that compute the first token of a text only.
    """

    shapes: Mapping[str, tuple[int, ...]]
    kinds: Mapping[str, str]
    mixtures: tuple[Mixture, ...] = ()
    idle: tuple[str, ...] = ()
    windows: Mapping[str, int] = field(default_factory=dict)
    narrow: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        return sum(map(math.prod, self.shapes.values()))

    def active(self, side: str) -> int:
        """Number of parameters active for one text of a side; embedding tables count whole, as in papers."""
        return sum(math.prod(shape) for name, shape in self.shapes.items() if self.meets(name, side))

    def parts(self, sides: tuple[str, ...]) -> list[Part]:
        """Shared parameters, then those of each expert, then routers."""
        names: dict[str, list[str]] = {}
        for name in self.shapes:
            names.setdefault(self.owner(name), []).append(name)
        first = ("shared", *self.kinds)
        order = sorted(names, key=lambda owner: first.index(owner) if owner in first else len(first))
        return [self._part(owner, names[owner], sides) for owner in order]

    def _part(self, owner: str, names: list[str], sides: tuple[str, ...]) -> Part:
        active = {side: self._sum([name for name in names if self.meets(name, side)]) for side in sides}
        return Part(owner, self._sum(names), {side: None if self._depends(names, side) else active[side] for side in sides})

    def _depends(self, names: list[str], side: str) -> bool:
        """Whether a router decides if these are active for a text of a side."""
        mixtures = [self._mixture(name) for name in names]
        return all(mixture is not None and mixture.routed and len(mixture.runs[side]) == 1 for mixture in mixtures)

    def _sum(self, names: list[str]) -> int:
        return sum(math.prod(self.shapes[name]) for name in names)

    def owner(self, name: str) -> str:
        """`shared`, `router`, the expert whose representation the parameter serves, or the number of a mixture's expert."""
        if name.startswith(OWNERS):
            return name.split(".")[1]
        if self._separate and name.startswith(("encoder.", "document_encoder.")):
            return f"{'document' if name.startswith('document') else 'query'} encoder"
        if (mixture := self._mixture(name)) is not None:
            return f"{'block expert' if mixture.once else 'expert'} {_matched(name)['number']}"
        if any(part in f".{name}" for part in ROUTERS):
            return "router"
        sparse = [expert for expert, kind in self.kinds.items() if kind == "sparse"]
        if ".vocabulary_head." in name and len(sparse) == 1:
            return sparse[0]
        private = {one.split(".")[1] for one in self.shapes if one.startswith("private_embeddings.")}
        if private and name.startswith("encoder.embeddings."):
            return next(expert for expert in self.kinds if expert not in private)
        return "shared"

    def meets(self, name: str, side: str) -> bool:
        """Whether this parameter is used for a text of a side."""
        if name.startswith(self.idle) or (".vocabulary_head." in name and "sparse" not in self.kinds.values()):
            return False
        if self._separate and name.startswith(("encoder.", "document_encoder.")):
            return name.startswith("document_encoder.") == (side == "document")
        mixture = self._mixture(name)
        return mixture is None or int(_matched(name)["number"]) in mixture.runs[side]

    @property
    def _separate(self) -> bool:
        return any(name.startswith("document_encoder.") for name in self.shapes)

    def _mixture(self, name: str) -> Mixture | None:
        """The mixture one of whose experts owns this parameter; None if its experts share it (one normalisation for all)."""
        match = EXPERT.fullmatch(name)
        if match is None:
            return None
        same_in_experts = (f"{match['prefix']}.experts.{number}.{match['rest']}" for number in (0, 1))
        mixture = next((one for one in self.mixtures if one.place == match["prefix"]), None)
        return mixture if all(twin in self.shapes for twin in same_in_experts) else None

    def flops(self, side: str, length: int) -> int:
        """Floating-point operations for one text of `length` tokens: two per matrix element and multiplication.

        The attention of a layer costs 4 · H per pair of tokens that attend to each other; a sparse expert multiplies every token by the
        word embeddings.
        """
        active_shapes = {name: shape for name, shape in self.shapes.items() if self.meets(name, side)}
        count = sum(2 * math.prod(shape) * self._times(name, length) for name, shape in active_shapes.items() if _is_matrix(name, shape))
        for name, shape in active_shapes.items():
            prefix = name.removesuffix(".output.weight")
            if prefix.endswith(".attention"):
                pairs = length if self._narrows(name) else seen(length, self.windows.get(prefix, length))
                count += 4 * shape[0] * pairs
        encoder = "document_encoder." if self._separate and side == "document" else "encoder."
        words = math.prod(self.shapes[f"{encoder}embeddings.words.weight"])
        return count + 2 * length * words * sum(kind == "sparse" for kind in self.kinds.values())

    def _times(self, name: str, length: int) -> int:
        """Number of multiplications of a matrix for one text: once per token, or once."""
        owner = self.owner(name)
        if owner == "router":
            uses = [mixture for mixture in self.mixtures if mixture.routed and name.startswith(self._gate(mixture))]
            return sum(1 if mixture.gate_once else length for mixture in uses)
        mixture = self._mixture(name)
        once = mixture is not None and mixture.once
        pooled = ".pooler." in name or (name.startswith("heads.") and self.kinds.get(owner) == "dense")
        is_key_or_value = name.endswith((".key.weight", ".value.weight"))
        return 1 if once or pooled or (self._narrows(name) and not is_key_or_value) else length

    def _narrows(self, name: str) -> bool:
        return name.startswith(tuple(f"{prefix}." for prefix in self.narrow))

    def _gate(self, mixture: Mixture) -> str:
        """Prefix of the parameter names of a mixture's gate: its own, or that of the gate shared with other layers."""
        own = f"{mixture.place}.gate."
        return own if any(name.startswith(own) for name in self.shapes) else "router."


def seen(length: int, window: int) -> int:
    """Number of pairs of tokens at most `window` positions apart in a text of `length` tokens.

    >>> attention_pairs(4, 4), attention_pairs(4, 1), attention_pairs(4, 0)
    (16, 10, 4)
    """
    return sum(min(position + window, length - 1) - max(position - window, 0) + 1 for position in range(length))


def _is_matrix(name: str, shape: tuple[int, ...]) -> bool:
    return len(shape) == 2 and not name.endswith(TABLES)


def _matched(name: str) -> re.Match[str]:
    match = EXPERT.fullmatch(name)
    assert match is not None, name
    return match
