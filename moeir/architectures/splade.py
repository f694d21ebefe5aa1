"""SPLADE: one weight per vocabulary term (Formal et al. 2021), built from the same parts as CAME's lexical expert."""

from moeir.architectures.base import Architecture
from moeir.backbones.encoder import Encoder
from moeir.backbones.packed_tokens import SpecialTokens
from moeir.heads.lexical import LexicalHead


class Splade(Architecture):
    """Learned sparse weights over the vocabulary, inner product; CAME's lexical expert alone, or summed over positions as SPLADE v1.

    `pooling`: max or sum.
    """

    def __init__(self, encoder: Encoder, special_tokens: SpecialTokens, *, pooling: str = "max", scale: float = 1.0) -> None:
        super().__init__(encoder, special_tokens)
        self.heads["lexical"] = LexicalHead(pooling=pooling)
        self.scales = {"lexical": scale}
