"""Mapping between the weight names of a family and ours; unknown names pass unchanged."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class NameMap:
    """Name prefixes, ours to the family's: of the `model`, of a layer (`layers`), of the vocabulary `head`, of the `classifier`.

    `prefix` precedes the model's names in a file that also has a head, `layer_prefix` the number of a layer; `skipped_prefixes` are names
    that are not read. `final_norm` is the family's name of the normalisation after the last layer, which belongs to that layer here.
    """

    prefix: str
    layer_prefix: str
    model: Mapping[str, str]
    layers: Mapping[str, str]
    head: Mapping[str, str]
    classifier: Mapping[str, str]
    skipped_prefixes: tuple[str, ...] = ()
    final_norm: str | None = None

    def from_hf(self, name: str) -> str | None:
        """Convert a name to ours; None for weights that are not read. `layers.last.` is the last layer of a name without number."""
        name = name.removeprefix(self.prefix).replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
        if name.startswith(self.skipped_prefixes):
            return None
        if self.final_norm is not None and name.startswith(self.final_norm):
            return "layers.last.closing." + name.removeprefix(self.final_norm)
        if name.startswith(self.layer_prefix):
            number, rest = name.removeprefix(self.layer_prefix).split(".", 1)
            return f"layers.{number}.{_replace_prefix(rest, _invert(self.layers))}"
        return _replace_prefix(name, _invert({**self.model, **self.classifier, **self.head}))

    def to_hf(self, name: str, *, masked_lm: bool) -> str:
        """Convert one of our names to the family's, as in its class with or without a head."""
        prefix = self.prefix if masked_lm else ""
        if name.startswith("vocabulary_head."):
            return _replace_prefix(name, self.head)
        if name.startswith("heads.relevance."):
            return _replace_prefix(name, self.classifier)
        if name.startswith("layers."):
            number, rest = name.removeprefix("layers.").split(".", 1)
            if self.final_norm is not None and rest.startswith("closing."):
                return prefix + self.final_norm + rest.removeprefix("closing.")
            return f"{prefix}{self.layer_prefix}{number}.{_replace_prefix(rest, self.layers)}"
        return prefix + _replace_prefix(name, self.model) if name.startswith(tuple(self.model)) else name


def _replace_prefix(name: str, names: Mapping[str, str]) -> str:
    for old, new in names.items():
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name


def _invert(names: Mapping[str, str]) -> dict[str, str]:
    return {hf: own for own, hf in names.items()}
