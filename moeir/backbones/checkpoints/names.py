"""Mapping between the weight names of a family and ours; unknown names pass unchanged."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Names:
    """Name prefixes, ours to the family's: of the `model`, of a layer (`layers`), of the vocabulary `head`, of the `classifier`.

    `prefix` precedes the model's names in a file that also has a head, `layer_prefix` the number of a layer; `skipped_prefixes` are names
    that are not read. `final_norm` is the family's name of the normalisation after the last layer, which belongs to that layer here.
    """

    prefix: str
    layer: str
    model: Mapping[str, str]
    layers: Mapping[str, str]
    head: Mapping[str, str]
    pair: Mapping[str, str]
    ignored: tuple[str, ...] = ()
    closing: str | None = None

    def ours(self, name: str) -> str | None:
        """Convert a name to ours; None for weights that are not read. `layers.last.` is the last layer of a name without number."""
        name = name.removeprefix(self.prefix).replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
        if name.startswith(self.ignored):
            return None
        if self.closing is not None and name.startswith(self.closing):
            return "layers.last.closing." + name.removeprefix(self.closing)
        if name.startswith(self.layer):
            number, rest = name.removeprefix(self.layer).split(".", 1)
            return f"layers.{number}.{_swapped(rest, _turned(self.layers))}"
        return _swapped(name, _turned({**self.model, **self.pair, **self.head}))

    def theirs(self, name: str, *, masked_lm: bool) -> str:
        """Convert one of our names to the family's, as in its class with or without a head."""
        prefix = self.prefix if masked_lm else ""
        if name.startswith("vocabulary_head."):
            return _swapped(name, self.head)
        if name.startswith("heads.relevance."):
            return _swapped(name, self.pair)
        if name.startswith("layers."):
            number, rest = name.removeprefix("layers.").split(".", 1)
            if self.closing is not None and rest.startswith("closing."):
                return prefix + self.closing + rest.removeprefix("closing.")
            return f"{prefix}{self.layer}{number}.{_swapped(rest, self.layers)}"
        return prefix + _swapped(name, self.model) if name.startswith(tuple(self.model)) else name


def _swapped(name: str, names: Mapping[str, str]) -> str:
    for old, new in names.items():
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name


def _turned(names: Mapping[str, str]) -> dict[str, str]:
    return {hf: own for own, hf in names.items()}
