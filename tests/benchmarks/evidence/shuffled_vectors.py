"""CoT-MoTE's pre-training with decoders that cannot use their vectors (`--objective shuffled_vectors:ShuffledMote`)."""

from collections.abc import Callable

from torch import Tensor

from moeir.pretraining.base import TokenLoss
from moeir.pretraining.mote import Mote


class ShuffledMote(Mote):
    """CoT-MoTE of the same cost, in which each text is decoded from the vectors of the next text of the batch."""

    def decoder_loss(self, vectors: Tensor, decode: Callable[[Tensor], TokenLoss], *, blocks: int = 1) -> TokenLoss:
        """The loss of `decode` on the vectors [B, H] of other texts, with their gradients."""
        return super().decoder_loss(vectors.roll(-1, 0), decode, blocks=blocks)
