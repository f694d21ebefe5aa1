"""Masked language modelling alone: what BERT learns from, and the ground of every other objective here."""

from torch import Tensor

from moeir.architectures.base import Architecture
from moeir.pretraining.base import Facts, Pretraining, masked_loss
from moeir.pretraining.batches import Batch


class Mlm(Pretraining):
    """Masked language modelling: tell the hidden tokens of each span from the others (Devlin et al. 2019).

    Spans are read as documents: an expert or encoder for queries stays as it is.
    """

    def __init__(self, architecture: Architecture, *, rate: float = 0.15) -> None:
        super().__init__(architecture, rate=rate)

    def forward(self, batch: Batch) -> tuple[Tensor, Facts]:
        """Cross-entropy, its mean over all hidden tokens of the batch."""
        encoded = self.encode(batch.anchors)
        return self.outcome({"mlm": masked_loss(encoded.states, encoded.texts, encoded.encoder)})
