"""How the weight names of a family and ours lead to one another; names of neither pass as they are."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Names:
    """Beginnings of names, ours to theirs: of the `model`, of a layer (`layers`), of the vocabulary `head`, of what scores a `pair`.

    `prefix` stands before the model's names in a file that holds a head too, `layer` before the number of a layer; `ignored` are names
    we do not read. `closing` is their name for the normalisation after the last layer, which that layer holds here.
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
        """Our name of a weight; None for one we do not read. The last layer, whose number a name does not say, is `layers.last.`"""
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
        """The family's name of one of our weights, as its class with a head or the one without lays it out."""
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
    return {theirs: mine for mine, theirs in names.items()}
