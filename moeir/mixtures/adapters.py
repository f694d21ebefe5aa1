"""Experts as adapters: a frozen trunk whose linear maps have a low-rank update for each expert (LoRA, Hu et al. 2022, eq. 3).

y = x Wᵀ + b + (alpha / r) · Σ w_i x A_iᵀ B_iᵀ, with the weights w of `dispatch.choose_adapters`: one expert for all rows (a role), one for
each of equal blocks of rows (towers as one batch), or any for each row. W and b are frozen; A and B are float32, and train.

An adapted map is a `torch.nn.Linear` whose `state_dict` has the names of its plain form, `weight` and `bias`, and besides `down` [E, r, K]
and `up` [E, N, r]: A of expert e is down[e] and B is up[e], as in PEFT's files. `list_adapters` lists these by expert and by the name of
the map in transformers.
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from moeir.backbones.dispatch import adapter_choice
from moeir.backbones.encoder import Encoder
from moeir.backbones.layers import TopKFeedForward, is_plain_linear
from moeir.errors import UsageError
from moeir.kernels.precision import product_dtype

GROUPS = ("all", "attention", "feedforward")


@dataclass(frozen=True)
class AdapterOptions:
    """Options of architectures whose experts can be adapters: their rank (0: none), alpha (None: 2 · rank), the dropout of their input, and
    the maps that have one, `all` of a layer, `attention`, `feedforward` or names that transformers has for them."""

    adapters: int = 0
    adapter_alpha: float | None = None
    adapter_dropout: float = 0.0
    adapter_maps: tuple[str, ...] = ("all",)

    def check(self, architecture: str) -> None:
        """UsageError for values out of range, and for options of adapters without any."""
        if self.adapters == 0 and self != AdapterOptions():
            raise UsageError(f"{architecture}: options of adapters, and no adapters; set their rank, as in {architecture}:adapters=16")
        if self.adapters < 0:
            raise UsageError(f"{architecture}:adapters={self.adapters}: expected the rank of adapters, 1 or more, or 0 for none")
        if self.adapter_alpha is not None and not 0 < self.adapter_alpha < math.inf:
            raise UsageError(f"{architecture}:adapter_alpha={self.adapter_alpha:g}: expected more than 0")
        if not 0 <= self.adapter_dropout < 1:
            raise UsageError(f"{architecture}:adapter_dropout={self.adapter_dropout:g}: expected 0 or more, less than 1")


NO_ADAPTERS = AdapterOptions()


class AdaptedLinear(nn.Linear):
    """A frozen linear map with an adapter for each of some experts. `path` is its name in the model of transformers."""

    def __init__(
        self, linear: nn.Linear, *, path: str, experts: Sequence[str], rank: int, alpha: float | None = None, dropout: float = 0.0
    ) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self.requires_grad_(False)
        self.path, self.experts, self.dropout = path, tuple(experts), dropout
        self.scaling = 2.0 if alpha is None else alpha / rank
        options = {"dtype": torch.float32, "device": linear.weight.device}
        bound = self.in_features**-0.5  # of A, as PEFT's: kaiming-uniform with a = √5
        self.down = nn.Parameter(torch.empty(len(self.experts), rank, self.in_features, **options).uniform_(-bound, bound))
        self.up = nn.Parameter(torch.zeros(len(self.experts), self.out_features, rank, **options))

    def forward(self, inputs: Tensor) -> Tensor:
        """[..., K] -> [..., N]."""
        kind = product_dtype(inputs)
        output = F.linear(inputs.to(kind), self.weight.to(kind), None if self.bias is None else self.bias.to(kind))
        return output + self.compute_update(inputs.to(kind).flatten(0, -2)).view_as(output)

    def compute_update(self, rows: Tensor) -> Tensor:
        """The scaled update of rows [n, K] by the experts that are chosen for them, [n, N]."""
        rows, down, up = F.dropout(rows, self.dropout, self.training), self.down.to(rows.dtype), self.up.to(rows.dtype)
        choice, expected = adapter_choice() if len(self.experts) > 1 else ((0,), len(rows))
        if len(rows) != expected:
            raise UsageError(f"{self.path} reads {len(rows)} rows of {expected}: it cannot have several adapters; see adapter_maps")
        if isinstance(choice, Tensor):
            inner = F.linear(rows, down.flatten(0, 1)).unflatten(1, down.shape[:2])  # [n, E, r]
            inner = inner * (self.scaling * choice).to(inner.dtype)[:, :, None]
            return F.linear(inner.flatten(1), up.transpose(0, 1).flatten(1))
        if choice != tuple(range(len(self.experts))):
            down, up = (torch.stack([part[expert] for expert in choice]) for part in (down, up))
        blocks = rows.unflatten(0, (len(choice), -1))
        return (torch.bmm(blocks, down.mT) * self.scaling).bmm(up.mT).flatten(0, 1)

    @torch.no_grad()
    def merge(self, expert: int) -> nn.Linear:
        """The map of an expert as a plain one, W + (alpha / r) · B A in float32."""
        merged = nn.Linear(self.in_features, self.out_features, bias=False, device="meta")
        merged.weight = nn.Parameter(torch.addmm(self.weight.to(self.up.dtype), self.up[expert], self.down[expert], alpha=self.scaling))
        merged.bias = self.bias
        return merged


def insert_adapters(
    encoder: Encoder, options: AdapterOptions, experts: Sequence[str], *, layers: Iterable[int] | None = None, rank: int | None = None
) -> None:
    """Freeze an encoder and put adapters of some experts on maps of its `layers` (None: all), of the options' rank or another one.

    The vocabulary head stays trainable, but for its words. UsageError for names of maps that these layers do not have.
    """
    freeze_trunk(encoder)
    weights = {name: weight for name, weight in encoder.named_parameters() if name.startswith(("layers.", "embeddings."))}
    paths = {id(weight): encoder.find_path(name).removesuffix(".weight") for name, weight in weights.items()}
    all_layers = list(encoder.layers)
    roots: list[nn.Module] = [all_layers[number] for number in (range(len(all_layers)) if layers is None else layers)]
    maps = [one for root in roots or [encoder.embeddings] for one in _list_maps(root, paths)]
    if not maps or not all(any(_is_named(path, (name,)) for _, _, path in maps) for name in options.adapter_maps or ("",)):
        names = ", ".join(sorted({_name_in_layer(path) for _, _, path in maps})) or "none"
        expected = f"expected {', '.join(GROUPS)}, or some of the maps of a layer: {names}"
        raise UsageError(f"adapter_maps={'+'.join(options.adapter_maps)}: {expected}")
    for owner, name, path in maps:
        if _is_named(path, options.adapter_maps):
            size = {"rank": rank or options.adapters, "alpha": options.adapter_alpha, "dropout": options.adapter_dropout}
            setattr(owner, name, AdaptedLinear(getattr(owner, name), path=path, experts=experts, **size))


def freeze_trunk(encoder: Encoder) -> None:
    """Freeze embeddings, layers and the words of the vocabulary head."""
    for part in (encoder.embeddings, encoder.layers, encoder.vocabulary_words):
        part.requires_grad_(False)


def _list_maps(root: nn.Module, paths: dict[int, str]) -> list[tuple[nn.Module, str, str]]:
    """The linear maps in a layer: owner, name in it, path. Gates of experts, and what follows the last layer, are none."""
    maps = []
    for owner_name, owner in root.named_modules():
        if not isinstance(owner, TopKFeedForward) and not owner_name.startswith("closing"):
            plain = [(name, part) for name, part in owner.named_children() if is_plain_linear(part) and id(part.weight) in paths]
            maps += [(owner, name, paths[id(part.weight)]) for name, part in plain]
    return maps


def _name_in_layer(path: str) -> str:
    """The part of a map's path after the number of its layer.

    >>> _name_in_layer("encoder.layer.0.attention.self.query")
    'attention.self.query'
    """
    return re.split(r"\.\d+\.", f".{path}", maxsplit=1)[-1]


def _is_named(path: str, names: Sequence[str]) -> bool:
    """Whether some names stand for a map: a group, its name, or the last parts of it."""
    group = "attention" if "att" in _name_in_layer(path).lower() else "feedforward"
    return any(name in ("all", group, path) or path.endswith(f".{name}") for name in names)


def list_adapters(model: nn.Module) -> dict[str, dict[str, tuple[Tensor, Tensor]]]:
    """expert -> path of a map in transformers -> A [r, K] and B [N, r], views of the parameters, into which weights can be copied."""
    adapters: dict[str, dict[str, tuple[Tensor, Tensor]]] = {}
    for module in model.modules():
        if isinstance(module, AdaptedLinear):
            for expert, down, up in zip(module.experts, module.down.detach(), module.up.detach(), strict=True):
                adapters.setdefault(expert, {})[module.path] = down, up
    return adapters


def merge_adapters(model: nn.Module, expert: int = 0) -> None:
    """Replace the maps with adapters by plain ones of an expert; those with a single adapter by that one."""
    for owner in list(model.modules()):
        for name, part in owner.named_children():
            if isinstance(part, AdaptedLinear):
                setattr(owner, name, part.merge(expert if len(part.experts) > 1 else 0))
