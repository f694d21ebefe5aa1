"""Masked language modelling alone, the objective of BERT and a part of every other objective here."""

from torch import Tensor

from moeir.architectures.base import Architecture
from moeir.pretraining.base import Pretraining, PretrainingMetrics, mlm_loss
from moeir.pretraining.batches import PretrainingBatch


class Mlm(Pretraining):
    """Masked language modelling: predict the masked tokens of each span (Devlin et al. 2019).

    Spans are encoded as documents: an expert or encoder for queries is not trained.
    """

    def __init__(self, architecture: Architecture, *, rate: float = 0.15) -> None:
        super().__init__(architecture, rate=rate)

    def forward(self, batch: PretrainingBatch) -> tuple[Tensor, PretrainingMetrics]:
        """Mean cross-entropy over all masked tokens of the batch."""
        encoded = self.encode(batch.anchors)
        return self.combine_losses({"mlm": mlm_loss(encoded.states, encoded.texts, encoded.encoder)})
