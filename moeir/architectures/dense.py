"""A dense bi-encoder: one vector for each text, the same weights for queries and documents."""

from torch import Tensor

from moeir.architectures.base import Architecture
from moeir.backbones.encoder import Encoder
from moeir.backbones.tokens import Signs, Tokens
from moeir.heads.pooled import Pooled


class Dense(Architecture):
    """One vector a text, inner product; CAME's global expert alone."""

    def __init__(
        self, encoder: Encoder, signs: Signs, *, pooling: str = "cls", normalise: bool = False, scale: float = 1.0
    ) -> None:
        super().__init__(encoder, signs)
        encoder.vocabulary_head = None
        self.heads["global"] = Pooled(pooling=pooling, normalise=normalise)
        self.scales = {"global": scale}

    @property
    def kinds(self) -> dict[str, str]:
        return {"global": "dense"}

    def states(self, tokens: Tokens) -> dict[str, Tensor]:
        return {"global": self.encoder(tokens)}
