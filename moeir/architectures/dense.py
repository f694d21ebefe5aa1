"""Dense bi-encoder: one vector per text, by a shared encoder or by one per side as in DPR (Karpukhin et al. 2020)."""

from moeir.architectures.base import Architecture
from moeir.backbones.encoder import Encoder
from moeir.backbones.packed_tokens import SpecialTokens
from moeir.errors import UsageError
from moeir.heads.pooling import PoolingHead
from moeir.mixtures.adapters import NO_ADAPTERS, AdapterOptions, insert_adapters


class Dense(Architecture):
    """One vector per text, inner product; siamese (CAME's global expert alone) or with separate encoders (DPR).

    `head` keeps the vocabulary head, for pre-training. `encoders`: siamese or separate. `pooling`: cls, mean, last, max or weighted_mean.
    `projections`: widths of linear maps of the pooled vector, with bias and activation if they have them (3072+768, 512-bias-tanh).
    `normalise` makes the inner product a cosine; `scale` multiplies the scores (finetune makes it 20 with normalise=true, unless it is set:
    --temperature). `dimension`: vectors are their first numbers only, normalised again with normalise=true (moeir init --model CHECKPOINT
    --arch dense:dimension=128 cuts them without training; finetune --matryoshka trains for it).
    `adapters`: the rank of adapters on a frozen encoder, which train in its place (0: none), multiplied by `adapter_alpha` (2 · rank, if it
    is not set) over the rank. `adapter_maps`: all, attention, feedforward, or names that transformers has for maps (q_proj+v_proj).
    """

    def __init__(
        self,
        encoder: Encoder,
        special_tokens: SpecialTokens,
        *,
        encoders: str = "siamese",
        pooling: str = "cls",
        normalise: bool = False,
        projections: tuple[str, ...] = (),
        dimension: int | None = None,
        scale: float = 1.0,
        head: bool = False,
        adapters: AdapterOptions = NO_ADAPTERS,
    ) -> None:
        super().__init__(encoder, special_tokens)
        if not head:
            encoder.vocabulary_head = None
        if adapters.adapters and encoders == "separate":
            raise UsageError("dense:adapters needs encoders=siamese; mote:adapters has an adapter for queries and one for documents")
        insert_adapters(encoder, adapters, ("global",))
        self.set_encoder_sharing(encoders)
        self.is_hf_compatible = self.is_hf_compatible and not projections and not adapters.adapters
        options = {"pooling": pooling, "normalise": normalise}
        self.heads["global"] = PoolingHead(hidden=encoder.config.hidden, projections=projections, **options)
        self.scales = {"global": scale}
        self.set_dimension(dimension)
