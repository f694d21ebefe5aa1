"""The control of a gated block: one adapter behind the gate of several experts (`--arch tied_adapter:TiedAdapter`).

Gate, noise, weight and combination are those of `sbmoe`, in training and at inference, and every expert is the same adapter: only the
choice among experts is missing. `sbmoe:experts=1` differs from a gated block in the length of its correction, too: 1, where a gate's
starts at its weight, about 1 / experts.
"""

import torch
from torch import Tensor

from moeir.architectures.sbmoe import Sbmoe
from moeir.backbones.encoder import Encoder
from moeir.backbones.packed_tokens import SpecialTokens
from moeir.mixtures.embedding import EmbeddingMixture


class TiedMixture(EmbeddingMixture):
    """A gate over `experts` experts that are all the same one."""

    def __init__(self, width: int, *, experts: int = 6, normalise: bool = False) -> None:
        super().__init__(width, experts=experts, normalise=normalise)
        del self.experts[1:]

    def _top1(self, vectors: Tensor, strength: Tensor, choice: Tensor) -> Tensor:
        return super()._top1(vectors, strength, torch.zeros_like(choice))


class TiedAdapter(Sbmoe):
    """SB-MoE whose `experts` experts are one and the same adapter."""

    is_hf_compatible = False

    def __init__(
        self,
        encoder: Encoder,
        special_tokens: SpecialTokens,
        *,
        experts: int = 6,
        pooling: str = "mean",
        normalise: bool = False,
        scale: float = 1.0,
    ) -> None:
        super().__init__(encoder, special_tokens, experts=experts, pooling=pooling, normalise=normalise, scale=scale)
        self.mixture = TiedMixture(encoder.config.hidden, experts=experts, normalise=normalise)
