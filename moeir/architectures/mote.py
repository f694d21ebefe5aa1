"""CoT-MoTE: one feed-forward expert for queries and one for passages in every layer, shared attention (Ma et al. 2023)."""

from moeir.architectures.base import Architecture
from moeir.backbones.encoder import Encoder
from moeir.backbones.packed_tokens import SpecialTokens
from moeir.errors import UsageError
from moeir.heads.lexical import LexicalHead, has_fixed_bias
from moeir.heads.pooling import PoolingHead
from moeir.mixtures.adapters import NO_ADAPTERS, AdapterOptions, insert_adapters, insert_experts
from moeir.mixtures.feedforward import select_expert_layers
from moeir.parsing import check_choice

SIMILARITIES = {"hybrid": ("global", "lexical"), "dense": ("global",), "sparse": ("lexical",)}


class Mote(Architecture):
    """Textual experts: queries and documents share attention and have separate feed-forwards; dense, sparse or their sum.

    The paper has no FLOPS penalty: the hybrid sum is trained without one unless `contrastive:flops_query=…,flops_document=…` sets it.
    `encoders`: mote, siamese (one feed-forward for both) or separate (two encoders). `similarity`: hybrid (the sum), dense or sparse.
    `pooling`: cls or mean. `every`: shared layers between two layers with experts, 0 for experts in all; `layers=3+6` names the layers
    instead.
    With normalise=true finetune sets global_scale to 20, unless it is set (--temperature). `dimension`: as for dense. `adapters`: the
    rank of adapters of a frozen encoder, one for queries and one for documents on each map; their options are those of dense.
    """

    is_hf_compatible = False
    default_fusion = "exact-sum"

    def __init__(
        self,
        encoder: Encoder,
        special_tokens: SpecialTokens,
        *,
        encoders: str = "mote",
        every: int = 0,
        layers: tuple[str, ...] = (),
        similarity: str = "hybrid",
        pooling: str = "cls",
        normalise: bool = False,
        dimension: int | None = None,
        global_scale: float = 1.0,
        lexical_scale: float = 1.0,
        adapters: AdapterOptions = NO_ADAPTERS,
    ) -> None:
        super().__init__(encoder, special_tokens)
        check_choice("mote:similarity", similarity, tuple(SIMILARITIES))
        check_choice("mote:encoders", encoders, ("mote", "siamese", "separate"))
        if encoders == "separate" and adapters.adapters:
            raise UsageError("mote:adapters needs encoders=mote, adapters of each side, or siamese, adapters of both")
        experts = SIMILARITIES[similarity]
        if "lexical" not in experts:
            encoder.vocabulary_head = None
        if encoders == "mote":
            encoder.check_layers("mote")
            expert_layers = select_expert_layers(len(encoder.layers), every=every, layers=layers)
            insert_experts(encoder, adapters, expert_layers, experts=2, routing="role", one_gate=True)
        else:
            insert_adapters(encoder, adapters, ("shared",))
        self.is_hf_compatible = encoders == "siamese" and not adapters.adapters
        if encoders == "separate":
            self.set_encoder_sharing(encoders)
        lexical_options = {"vocabulary": encoder.config.vocabulary, "has_bias": not self.is_hf_compatible and has_fixed_bias(encoder)}
        heads = {"global": lambda: PoolingHead(pooling=pooling, normalise=normalise), "lexical": lambda: LexicalHead(**lexical_options)}
        self.heads.update({name: heads[name]() for name in experts})
        self.summed_experts = {similarity: experts}
        scales = {"global": global_scale, "lexical": lexical_scale}
        self.scales = {name: scales[name] for name in experts}
        self.set_dimension(dimension)
