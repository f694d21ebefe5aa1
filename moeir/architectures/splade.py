"""SPLADE: one weight per vocabulary term (Formal et al. 2021), built from the same parts as CAME's lexical expert."""

from moeir.architectures.base import Architecture
from moeir.backbones.encoder import Encoder
from moeir.backbones.packed_tokens import SpecialTokens
from moeir.heads.lexical import LexicalHead, has_fixed_bias
from moeir.mixtures.adapters import NO_ADAPTERS, AdapterOptions, insert_adapters


class Splade(Architecture):
    """Learned sparse weights over the vocabulary, inner product; CAME's lexical expert alone.

    `activation`: relu, or log1p_relu (the logarithm of a maximum is taken twice). `queries`: encoder, or tokens (a learned weight for each
    token of the vocabulary: no encoder reads a query). `adapters`: the rank of adapters on a frozen encoder, below a vocabulary head that
    trains but for its words; their options are those of dense.
    """

    def __init__(
        self,
        encoder: Encoder,
        special_tokens: SpecialTokens,
        *,
        activation: str = "relu",
        queries: str = "encoder",
        scale: float = 1.0,
        adapters: AdapterOptions = NO_ADAPTERS,
    ) -> None:
        super().__init__(encoder, special_tokens)
        insert_adapters(encoder, adapters, ("lexical",))
        self.is_hf_compatible = queries == "encoder" and not adapters.adapters
        options = {"activation": activation, "queries": queries}
        options |= {"vocabulary": encoder.config.vocabulary, "has_bias": not self.is_hf_compatible and has_fixed_bias(encoder)}
        self.heads["lexical"] = LexicalHead(special_tokens=special_tokens, **options)
        self.scales = {"lexical": scale}
        self.token_experts = ("lexical",) if queries == "tokens" else ()
