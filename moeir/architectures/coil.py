"""COIL: exact term matches scored by contextual token vectors, plus the [CLS] vector (Gao et al. 2021), scored and trained as one sum."""

from moeir.architectures.base import Architecture
from moeir.backbones.encoder import Encoder
from moeir.backbones.packed_tokens import SpecialTokens
from moeir.errors import UsageError
from moeir.heads.pooling import ProjectionHead
from moeir.heads.token_vectors import CoilHead


class Coil(Architecture):
    """One vector per token, compared only with tokens of the same term, plus one of [CLS]; `cls_dim=0` is COIL-tok, without the latter."""

    is_hf_compatible = False
    default_fusion = "exact-sum"

    def __init__(
        self,
        encoder: Encoder,
        special_tokens: SpecialTokens,
        *,
        dim: int = 32,
        cls_dim: int = 768,
    ) -> None:
        super().__init__(encoder, special_tokens)
        if cls_dim < 0:
            raise UsageError(f"coil:cls_dim={cls_dim}: expected 1 or more, or 0 for no [CLS] part")
        encoder.vocabulary_head = None
        hidden = encoder.config.hidden
        if cls_dim:
            self.heads["global"] = ProjectionHead(hidden, dimension=cls_dim)
            self.summed_experts = {"hybrid": ("global", "exact")}
        self.heads["exact"] = CoilHead(hidden, special_tokens, dimension=dim)
