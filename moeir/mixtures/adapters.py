"""Experts as adapters: a frozen trunk whose linear maps have a low-rank update for each expert (LoRA, Hu et al. 2022, eq. 3).

y = x Wᵀ + b + (alpha / r) · Σ w_i x A_iᵀ B_iᵀ, with the weights w of `dispatch.choose_adapters`: one expert for all rows (a role), one for
each of equal blocks of rows (towers as one batch), or any for each row. W and b are frozen; A and B are float32, and train.

An adapted map is a `torch.nn.Linear` whose `state_dict` has the names of its plain form, `weight` and `bias`, and besides `down` [E, r, K]
and `up` [E, N, r]: A of expert e is down[e] and B is up[e], as in PEFT's files. A table of embeddings that `adapter_maps` names has
adapters in the same form, one for all texts or for each role.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from moeir.backbones.dispatch import AdapterChoice, adapter_choice, check_expert_count
from moeir.backbones.encoder import Encoder
from moeir.backbones.layers import FrozenEmbedding, FrozenLinear, Layer, TopKFeedForward, is_plain_linear
from moeir.backbones.packed_tokens import PackedTokens
from moeir.errors import UsageError
from moeir.mixtures.feedforward import RoutedFeedForward, check_has_no_experts, has_learned_router
from moeir.mixtures.router import LEARNED_ROUTINGS, ExpertRouter, make_gate

GROUPS = ("all", "attention", "feedforward")
ROLES = ("query", "document")


@dataclass(frozen=True)
class AdapterOptions:
    """Options of architectures whose experts can be adapters: their rank (0: none), alpha (None: 2 · rank), the dropout of their input, and
    the maps that have one, `all` of a layer, `attention`, `feedforward` or names that transformers has for them, or for embeddings."""

    adapters: int = 0
    adapter_alpha: float | None = None
    adapter_dropout: float = 0.0
    adapter_maps: tuple[str, ...] = ("all",)

    def check(self) -> None:
        """UsageError for values out of range, and for options of adapters without any."""
        if self.adapters == 0 and self != AdapterOptions():
            raise UsageError("options of adapters, and no adapters; set their rank, as in adapters=16")
        if self.adapters < 0:
            raise UsageError(f"adapters={self.adapters}: expected the rank of adapters, 1 or more, or 0 for none")
        if self.adapter_alpha is not None and not 0 < self.adapter_alpha < math.inf:
            raise UsageError(f"adapter_alpha={self.adapter_alpha:g}: expected more than 0")
        if not 0 <= self.adapter_dropout < 1:
            raise UsageError(f"adapter_dropout={self.adapter_dropout:g}: expected 0 or more, less than 1")


NO_ADAPTERS = AdapterOptions()


class AdaptedLinear(FrozenLinear):
    """A frozen linear map with an adapter for each of some experts; `adapters` are the parameters of `_add_adapters`."""

    def __init__(self, linear: nn.Linear, **adapters: Any) -> None:
        super().__init__(linear)
        _add_adapters(self, **adapters)

    def forward(self, inputs: Tensor) -> Tensor:
        """[..., K] -> [..., N]."""
        output = super().forward(inputs)
        return output + self.compute_update(inputs.to(output.dtype).flatten(0, -2)).view_as(output)

    def compute_update(self, rows: Tensor) -> Tensor:
        """The scaled update of rows [n, K] by the experts that are chosen for them, [n, N]."""
        rows, down, up = self.dropout(rows), self.down.to(rows.dtype), self.up.to(rows.dtype)
        choice, expected = adapter_choice.get() if len(self.experts) > 1 else ((0,), len(rows))
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
    def merge(self, expert: int, dtype: torch.dtype) -> nn.Linear:
        """The map of an expert as a plain one in a dtype: W + (alpha / r) · B A, computed in float32."""
        merged = nn.Linear(self.in_features, self.out_features, bias=False, device="meta")
        weight = torch.addmm(self.weight.to(self.up.dtype), self.up[expert], self.down[expert], alpha=self.scaling)
        merged.weight, merged.bias = nn.Parameter(weight.to(dtype)), self.bias
        return merged


class AdaptedEmbedding(FrozenEmbedding):
    """A frozen table with an adapter for each of some experts: the row of token t has (alpha / r) · B A[:, t] more."""

    def __init__(self, table: nn.Embedding, **adapters: Any) -> None:
        super().__init__(table)
        self.weight.requires_grad_(False)
        _add_adapters(self, **adapters)

    def forward(self, ids: Tensor) -> Tensor:
        """[...] -> [..., H]."""
        expert = adapter_choice.get()[0][0] if len(self.experts) > 1 else 0
        return super().forward(ids) + self.scaling * F.embedding(ids, self.down[expert].mT) @ self.up[expert].mT

    @torch.no_grad()
    def merge(self, expert: int, dtype: torch.dtype) -> FrozenEmbedding:
        """The table of an expert without adapters, held in a dtype, computed in float32."""
        weight = torch.addmm(self.weight.to(self.up.dtype), self.down[expert].mT, self.up[expert].mT, alpha=self.scaling)
        return FrozenEmbedding(nn.Embedding(self.num_embeddings, self.embedding_dim, self.padding_idx, _weight=weight.to(dtype)))


Adapted: TypeAlias = AdaptedLinear | AdaptedEmbedding


def _add_adapters(module: Any, *, path: str, experts: Sequence[str], rank: int, alpha: float | None = None, dropout: float = 0.0) -> None:
    """Give a frozen map, or a table, adapters of some experts: A as PEFT draws it for maps, kaiming-uniform with a = √5, and B of zeros.
    `path` is its name in the model of transformers."""
    module.path, module.experts, module.dropout = path, tuple(experts), nn.Dropout(dropout)
    module.scaling = 2.0 if alpha is None else alpha / rank
    outputs, inputs = module.weight.mT.shape if isinstance(module, nn.Embedding) else module.weight.shape
    options = {"dtype": torch.float32, "device": module.weight.device}
    bound = inputs**-0.5
    module.down = nn.Parameter(torch.empty(len(experts), rank, inputs, **options).uniform_(-bound, bound))
    module.up = nn.Parameter(torch.zeros(len(experts), outputs, rank, **options))


class AdapterRouter(ExpertRouter):
    """Chooses the adapters of a layer's maps, all of them by one decision.

    A gate's gradient is that of the outputs of each map: with the weights w of the experts' updates, one-hot in value, `full` is
    w_i = z_i straight-through, `pair` moves w from the chosen expert to the other one, and `switch` multiplies the chosen w.
    """

    def forward(self, states: Tensor, tokens: PackedTokens, block: Tensor) -> AdapterChoice:
        """states [T, H], the input of the layer's feed-forward or of the layer, block [T, H], that of the layer."""
        decision = self.decide(states, tokens, block)
        if isinstance(decision, int):
            return (decision,)
        chosen = F.one_hot(decision.choice, self.expert_count).float()
        weights = chosen if decision.strength is None else chosen * decision.strength[:, None]
        for other, factor in decision.others:
            weights = weights + factor[:, None] * (F.one_hot(other, self.expert_count) - chosen)
        return weights


class TowerRouter(nn.Module):
    """Gives each repetition of a batch the adapters of its tower, which `PackedTokens.repeat` names."""

    gate_input = "block_input"
    last_routing: object = None

    def forward(self, states: Tensor, tokens: PackedTokens, block: Tensor) -> AdapterChoice:
        """The experts of `tokens`, which are as many texts for each."""
        assert tokens.experts is not None, "these layers read the batch once for each tower"
        return tokens.experts


def insert_adapters(
    encoder: Encoder,
    options: AdapterOptions,
    experts: Sequence[str],
    layers: Sequence[int] | None = None,
    *,
    make_router: Callable[[Layer], AdapterRouter | TowerRouter] | None = None,
) -> None:
    """Freeze an encoder and put adapters of some experts on maps of its `layers` (None: all), if the options say so.

    Several experts need a router for each layer. One that reads the feed-forward's input chooses among adapters of the feed-forward alone.
    The vocabulary head stays trainable, but for its words. Tables of embeddings have adapters if `adapter_maps` names them, and the only
    expert reads all texts, or the experts are the two roles. UsageError for names of maps that these layers do not have.
    """
    options.check()
    if not options.adapters:
        return
    if options.adapters > encoder.config.hidden:
        raise UsageError(f"adapters={options.adapters}: expected a rank of at most {encoder.config.hidden}, the width of the states")
    if not any(isinstance(module, Adapted) for module in encoder.modules()):
        for part in (encoder.embeddings, encoder.layers, encoder.vocabulary_words):
            part.requires_grad_(False)
    frozen = {name: weight for name, weight in encoder.named_parameters() if not weight.requires_grad}
    paths = {id(weight): encoder.find_hf_name(name).removesuffix(".weight") for name, weight in frozen.items()}
    roots: list[nn.Module] = []
    for number in range(len(encoder.layers)) if layers is None else layers:
        layer = encoder.layers[number]
        layer.router = None if make_router is None else make_router(layer)
        if layer.router is not None and layer.router.gate_input == "ffn_input":
            layer.separate_feedforward()
        roots.append(layer if layer.router is None or layer.router.gate_input == "block_input" else layer.feedforward)
    if not encoder.layers:
        encoder.check_layers("several adapters") if make_router is not None else roots.append(encoder.embeddings)
    by_role = make_router is not None and tuple(experts) == ROLES
    maps = [one for root in roots for one in _list_maps(root, paths)]
    if tables := _list_tables(encoder, options.adapter_maps, paths) if by_role or (make_router is None and layers is None) else []:
        maps += tables
        encoder.table_experts = {role: number for number, role in enumerate(experts)} if by_role else None
    if not all(any(_is_named(path, (name,)) for _, _, path in maps) for name in options.adapter_maps or ("",)):
        names = ", ".join(sorted({_name_in_layer(path) for _, _, path in maps})) or "none"
        expected = f"expected {', '.join(GROUPS)}, or some of the maps of a layer: {names}"
        raise UsageError(f"adapter_maps={'+'.join(options.adapter_maps)}: {expected}")
    for owner, name, path in maps:
        if _is_named(path, options.adapter_maps):
            sizes = {"rank": options.adapters, "alpha": options.adapter_alpha, "dropout": options.adapter_dropout}
            kind = AdaptedLinear if is_plain_linear(getattr(owner, name)) else AdaptedEmbedding
            setattr(owner, name, kind(getattr(owner, name), path=path, experts=experts, **sizes))


def insert_experts(
    encoder: Encoder, adapters: AdapterOptions, layers: Sequence[int], *, experts: int, routing: str, one_gate: bool, **options: Any
) -> nn.Linear | None:
    """Put experts that are chosen by role or by a learned gate into some layers: adapters, if their options say so, or copies of a layer's
    feed-forward; returns the gate that layers share, if there is one.

    `options` are those of `ExpertRouter`. UsageError for an impossible number of experts, or a layer that was trained with experts.
    """
    adapters.check()
    check_expert_count(experts)
    check_has_no_experts(encoder.layers, layers)
    is_learned = routing in LEARNED_ROUTINGS
    gate = make_gate(encoder.layers[layers[0]].hidden, experts) if one_gate and is_learned else None
    options |= {"routing": routing, "gate": gate}
    if adapters.adapters:
        names = ROLES if routing == "role" and experts == 2 else tuple(f"expert{number}" for number in range(experts))
        options |= {} if is_learned else {"gate_input": "block_input"}  # a role is known before
        insert_adapters(encoder, adapters, names, layers, make_router=lambda layer: AdapterRouter(experts, layer.hidden, **options))
        return gate
    for layer in (encoder.layers[number] for number in layers):
        layer.separate_feedforward()
        layer.feedforward = RoutedFeedForward(layer.feedforward, experts=experts, **options)
    return gate


def _list_maps(root: nn.Module, paths: dict[int, str]) -> list[tuple[nn.Module, str, str]]:
    """The linear maps in a layer: owner, name in it, path. Gates of experts, and what follows the last layer, are none."""
    maps = []
    for owner_name, owner in root.named_modules():
        if not isinstance(owner, TopKFeedForward) and not owner_name.startswith("final_norm"):
            plain = [(name, part) for name, part in owner.named_children() if is_plain_linear(part) and id(part.weight) in paths]
            maps += [(owner, name, paths[id(part.weight)]) for name, part in plain]
    return maps


def _list_tables(encoder: Encoder, names: Sequence[str], paths: dict[int, str]) -> list[tuple[nn.Module, str, str]]:
    """The tables of embeddings that some names stand for, which no group does; UsageError if a vocabulary head has them too."""
    names = [name for name in names if name not in GROUPS]
    tables = []
    for owner in encoder.embeddings.modules():
        own = [(name, part) for name, part in owner.named_children() if type(part) is nn.Embedding and id(part.weight) in paths]
        tables += [(owner, name, path) for name, part in own if _is_named(path := paths[id(part.weight)], names)]
    if tables and encoder.vocabulary_head is not None:
        raise UsageError(f"adapter_maps: {tables[0][2]} can have no adapters, as the vocabulary head multiplies by its rows; leave it out")
    return tables


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


def merge_adapters(model: nn.Module, expert: int = 0, dtype: torch.dtype = torch.float32) -> None:
    """Replace maps by plain ones that have the only adapter in them, or that of an expert that no learned router chooses. Tables with an
    adapter for each role stay: their rows are products as small as these."""
    layers = [module for module in model.modules() if isinstance(module, Layer)]
    routed = {id(part) for layer in layers if has_learned_router(layer.router) for part in layer.modules()}
    for owner in list(model.modules()):
        for name, part in owner.named_children():
            is_map = isinstance(part, AdaptedLinear) and id(part) not in routed
            if is_map or (isinstance(part, AdaptedEmbedding) and len(part.experts) == 1):
                setattr(owner, name, part.merge(expert if len(part.experts) > 1 else 0, dtype))
    for layer in layers:
        layer.router = layer.router if has_learned_router(layer.router) else None
