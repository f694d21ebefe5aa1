"""CAME: shared lower layers and a tower per expert (Cai et al. 2023, §3.2)."""

import copy
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from moeir.architectures.base import Architecture, Router
from moeir.backbones.encoder import Encoder, run_layers
from moeir.backbones.packed_tokens import PackedTokens, SpecialTokens
from moeir.errors import UsageError
from moeir.heads.lexical import LexicalHead, has_fixed_bias
from moeir.heads.pooling import PoolingHead
from moeir.heads.token_vectors import TokenVectorHead
from moeir.mixtures.adapters import NO_ADAPTERS, AdapterOptions, TowerRouter, insert_adapters, merge_adapters
from moeir.mixtures.feedforward import find_routers
from moeir.parsing import check_choice

EXPERTS = ("lexical", "local", "global")


class Came(Architecture):
    """Competing experts over shared layers: lexical (sparse), local (late interaction), global (dense).

    `experts`: some of lexical+local+global. `embeddings`: shared or private (with shared_layers=0). `lexical_queries`: encoder, or tokens
    (a learned weight for each token of the vocabulary: no tower reads a query). `pooling`: cls or mean. `normalise` and `dimension` (as
    for dense) are of the global expert, `local_normalise` of the local one: finetune sets global_scale to 20 with normalise=true, unless
    it is set (--temperature), and never local_scale. `adapters`: the rank of adapters in place of towers, one for each expert on the maps
    of frozen private layers, which run for all experts at once; their options are those of dense. Shared layers are frozen, unless
    `shared_adapters` is the rank of adapters that serve all experts.
    """

    is_hf_compatible = False

    def __init__(
        self,
        encoder: Encoder,
        special_tokens: SpecialTokens,
        *,
        shared_layers: int = 10,
        experts: tuple[str, ...] = ("lexical", "local", "global"),
        embeddings: str = "shared",
        lexical_queries: str = "encoder",
        local_dim: int = 128,
        local_normalise: bool = False,
        pooling: str = "cls",
        normalise: bool = False,
        dimension: int | None = None,
        lexical_scale: float = 1.0,
        local_scale: float = 1.0,
        global_scale: float = 1.0,
        shared_adapters: int = 0,
        adapters: AdapterOptions = NO_ADAPTERS,
    ) -> None:
        super().__init__(encoder, special_tokens)
        encoder.check_layers("came")
        _check_options(experts, shared_layers, embeddings, depth=(depth := len(encoder.layers)))
        experts = tuple(name for name in EXPERTS if name in experts)
        self.towers, self.shared_layers, self.experts = nn.ModuleDict(), shared_layers, experts
        if adapters.adapters and (shared_layers == depth or embeddings == "private"):
            reason = f"found shared_layers={shared_layers} of {depth}, embeddings={embeddings}"
            raise UsageError(f"came:adapters: they are for private layers over shared ones that are frozen; {reason}")
        insert_adapters(encoder, adapters, experts, range(shared_layers, depth), make_router=lambda layer: TowerRouter())
        if not adapters.adapters:
            self.towers.update({name: encoder.copy_layers_from(shared_layers) for name in experts})
            encoder.layers = encoder.layers[:shared_layers]
        if shared_adapters and not (adapters.adapters and shared_layers):
            raise UsageError(f"came:shared_adapters={shared_adapters}: they are for shared layers, beside adapters=RANK of private ones")
        if shared_adapters:
            insert_adapters(encoder, replace(adapters, adapters=shared_adapters), ("shared",), range(shared_layers))
        if "lexical" not in experts:
            encoder.vocabulary_head = None
        self.private_embeddings = nn.ModuleDict()
        if embeddings == "private" and encoder.file_names is not None:
            raise UsageError("came:embeddings=private is for moeir's own layers: transformers' may read what embeddings compute")
        if embeddings == "private":
            self.private_embeddings.update({name: copy.deepcopy(encoder.embeddings) for name in experts[1:]})
        lexical_options = {"vocabulary": encoder.config.vocabulary, "special_tokens": special_tokens, "has_bias": has_fixed_bias(encoder)}
        heads = {
            "lexical": lambda: LexicalHead(queries=lexical_queries, **lexical_options),
            "local": lambda: TokenVectorHead(encoder.config.hidden, special_tokens, dimension=local_dim, normalise=local_normalise),
            "global": lambda: PoolingHead(pooling=pooling, normalise=normalise),
        }
        self.heads.update({name: heads[name]() for name in experts})
        scales = {"lexical": lexical_scale, "local": local_scale, "global": global_scale}
        self.scales = {name: scales[name] for name in experts}
        self.set_dimension(dimension)
        self.token_experts = ("lexical",) if lexical_queries == "tokens" else ()

    def routers(self, side: str = "query") -> dict[str, Router]:
        """Those of the shared layers, and those of towers whose weights have experts: `lexical.layer2`, …"""
        towers = {f"{tower}.{name}": router for tower, layers in self.towers.items() for name, router in find_routers(layers).items()}
        return super().routers(side) | towers

    def encode_states(self, tokens: PackedTokens, experts: Sequence[str]) -> dict[str, Tensor]:
        """The shared layers run once, then the tower of each expert; with private embeddings each embeds the tokens itself."""
        shared = run_layers(self.encoder.layers[: self.shared_layers], self.encoder.embeddings(tokens), tokens)
        if not self.towers:
            return self._run_adapted_towers(experts, shared, tokens)
        inputs = {name: self.private_embeddings[name](tokens) if name in self.private_embeddings else shared for name in experts}
        return {name: run_layers(self.towers[name], inputs[name], tokens) for name in experts}

    def _run_adapted_towers(self, experts: Sequence[str], shared: Tensor, tokens: PackedTokens) -> dict[str, Tensor]:
        """The private layers, read once for the states of all experts, each with its adapters."""
        repeated = tokens.repeat(tuple(map(self.experts.index, experts)))
        if self.encoder.file_names is not None:
            with torch.no_grad():
                self.encoder.embeddings(repeated)  # notes the arguments of transformers' layers for the repeated texts
        states = run_layers(self.encoder.layers[self.shared_layers :], shared.repeat(len(experts), 1), repeated)
        return dict(zip(experts, states.chunk(len(experts)), strict=True))

    def merge_adapters(self, dtype: torch.dtype = torch.float32) -> None:
        if not self.towers:
            for number, name in enumerate(self.experts):
                self.towers[name] = self.encoder.copy_layers_from(self.shared_layers)
                merge_adapters(self.towers[name], number, dtype)
            self.encoder.layers = self.encoder.layers[: self.shared_layers]
        super().merge_adapters(dtype)


def _check_options(experts: tuple[str, ...], shared_layers: int, embeddings: str, *, depth: int) -> None:
    if not 0 <= shared_layers <= depth:
        advice = f"expected 0 to {depth}, as in --arch came:shared_layers={depth * 10 // 12}"
        raise UsageError(f"came:shared_layers={shared_layers}: the encoder has {depth} layers; {advice}")
    unknown = [name for name in experts if name not in EXPERTS]
    if unknown or not experts or len(set(experts)) != len(experts):
        raise UsageError(f"came:experts={'+'.join(experts)}: expected some of {'+'.join(EXPERTS)}, each once")
    check_choice("came:embeddings", embeddings, ("shared", "private"))
    if embeddings == "private" and shared_layers:
        raise UsageError(f"came:embeddings=private needs shared_layers=0, found {shared_layers}")
