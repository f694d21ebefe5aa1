"""SB-MoE: one gated block of experts over the pooled vector of a dense bi-encoder (Sokli et al. 2025)."""

from moeir.architectures.base import Architecture
from moeir.backbones.encoder import Encoder
from moeir.backbones.packed_tokens import SpecialTokens
from moeir.heads.pooling import PoolingHead
from moeir.mixtures.embedding import EmbeddingMixture


class Sbmoe(Architecture):
    """A dense bi-encoder whose vector is refined by n small experts: noisy top-1 in training; top-1 or all at inference.

    `inference`: top1 or all; changed without training by moeir init --model CHECKPOINT --arch sbmoe:inference=all. `combine`:
    norm_expert (x + w · normalised f(x)), weighted (x + w · f(x)) or release (x + normalised w · f(x), whose gate gets no gradient).
    `gate`: learned, or random (drawn anew in training; at inference by the text). `experts=1`: an adapter without a gate. `pooling`: cls
    or mean. With normalise=true the refined vector has length 1, and finetune sets scale to 20, unless it is set (--temperature).
    `dimension`: as for dense, of the refined vector.
    """

    is_hf_compatible = False

    def __init__(
        self,
        encoder: Encoder,
        special_tokens: SpecialTokens,
        *,
        experts: int = 6,
        inference: str = "top1",
        combine: str = "norm_expert",
        gate: str = "learned",
        pooling: str = "mean",
        normalise: bool = False,
        dimension: int | None = None,
        scale: float = 1.0,
    ) -> None:
        super().__init__(encoder, special_tokens)
        encoder.vocabulary_head = None
        self.heads["global"] = PoolingHead(pooling=pooling)
        options = {"experts": experts, "inference": inference, "combine": combine, "gate": gate, "normalise": normalise}
        self.mixture = EmbeddingMixture(encoder.config.hidden, **options)
        self.scales = {"global": scale}
        self.set_dimension(dimension)
