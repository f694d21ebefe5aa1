"""Dense bi-encoder: one vector per text, by a shared encoder or by one per side as in DPR (Karpukhin et al. 2020)."""

from torch import Tensor

from moeir.architectures.base import Architecture
from moeir.backbones.encoder import Encoder, Layer
from moeir.backbones.packed_tokens import PackedTokens, SpecialTokens
from moeir.heads.pooling import PoolingHead


class Dense(Architecture):
    """One vector per text, inner product; siamese (CAME's global expert alone) or with separate encoders (DPR).

    `head` keeps the vocabulary head, for pre-training. `encoders`: siamese or separate. `pooling`: cls or mean. `normalise` makes the
    inner product a cosine; `scale` multiplies the scores.
    """

    def __init__(
        self,
        encoder: Encoder,
        special_tokens: SpecialTokens,
        *,
        encoders: str = "siamese",
        pooling: str = "cls",
        normalise: bool = False,
        scale: float = 1.0,
        head: bool = False,
    ) -> None:
        super().__init__(encoder, special_tokens)
        if not head:
            encoder.vocabulary_head = None
        self.set_encoder_sharing(encoders)
        self.heads["global"] = PoolingHead(pooling=pooling, normalise=normalise)
        self.scales = {"global": scale}

    @property
    def representation_kinds(self) -> dict[str, str]:
        return {"global": "dense"}

    def cls_only_layers(self) -> list[Layer]:
        encoders = {self.encoder_for(side) for side in ("query", "document")} if self.heads["global"].pooling == "cls" else ()
        return [encoder.layers[-1] for encoder in encoders]

    def encode_states(self, tokens: PackedTokens) -> dict[str, Tensor]:
        encoder = self.encoder_for(tokens.side)
        return {"global": encoder.encode_cls(tokens) if self.heads["global"].pooling == "cls" else encoder(tokens)}
