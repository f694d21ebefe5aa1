"""TASER: interleaved shared and specialised blocks, one vector per text (Cheng et al. 2023)."""

from moeir.architectures.base import Architecture
from moeir.backbones.encoder import Encoder
from moeir.backbones.packed_tokens import SpecialTokens
from moeir.heads.pooling import PoolingHead
from moeir.mixtures.adapters import NO_ADAPTERS, AdapterOptions, insert_adapters, insert_experts
from moeir.mixtures.feedforward import select_expert_layers
from moeir.mixtures.router import ROUTINGS
from moeir.parsing import check_choice

GATES = ("one", "per_layer")


class Taser(Architecture):
    """One expert block after every two shared ones, routed by role, by text or by token; inner product of first tokens.

    `routing`: role (queries use one half of the experts, documents the other), sequence (one choice per text), token (one per token) or
    shared (no experts). `every`: shared layers between two layers with experts; `layers=3+6` names them. `gates`: one (for all layers) or
    per_layer. `gate_input`: ffn_input or block_input. `gradient`, by which a gate learns: full (straight-through; all experts run in
    training), pair (two run, less biased), switch (one runs, biased) or none. `gate_start`: centred (no expert preferred) or drawn.
    `pooling`: cls or mean. With normalise=true finetune sets scale to 20, unless it is set (--temperature). `dimension`: as for dense.
    `adapters`: the rank of adapters, which are the experts of a frozen encoder, on the maps that come after the decision: a gate with
    ffn_input decides before the feed-forward, a role and a gate with block_input before the layer. Their options are those of dense.
    """

    def __init__(
        self,
        encoder: Encoder,
        special_tokens: SpecialTokens,
        *,
        routing: str = "role",
        experts: int = 2,
        every: int = 2,
        layers: tuple[str, ...] = (),
        gates: str = "one",
        gate_input: str = "ffn_input",
        gradient: str = "full",
        gate_start: str = "centred",
        temperature: float = 1.0,
        pooling: str = "cls",
        normalise: bool = False,
        dimension: int | None = None,
        scale: float = 1.0,
        adapters: AdapterOptions = NO_ADAPTERS,
    ) -> None:
        super().__init__(encoder, special_tokens)
        encoder.vocabulary_head = None
        check_choice("taser:routing", routing, ("shared", *ROUTINGS))
        check_choice("taser:gates", gates, GATES)
        self.router = None
        if routing == "shared":
            insert_adapters(encoder, adapters, ("global",))
        else:
            encoder.check_layers("taser")
            expert_layers = select_expert_layers(len(encoder.layers), every=every, layers=layers)
            options = {"gate_input": gate_input, "gradient": gradient, "gate_start": gate_start, "temperature": temperature}
            options |= {"experts": experts, "routing": routing, "one_gate": gates == "one"}
            self.router = insert_experts(encoder, adapters, expert_layers, **options)
        self.is_hf_compatible = routing == "shared" and not adapters.adapters
        self.heads["global"] = PoolingHead(pooling=pooling, normalise=normalise)
        self.scales = {"global": scale}
        self.set_dimension(dimension)
