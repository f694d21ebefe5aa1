"""Condenser: a head predicts masked tokens from the last [CLS] and the states of a middle layer (Gao and Callan 2021)."""

from torch import Tensor

from moeir.architectures.base import Architecture
from moeir.pretraining.base import EncodedTexts, Pretraining, PretrainingMetrics, TokenLoss, mlm_loss
from moeir.pretraining.batches import PretrainingBatch
from moeir.pretraining.decoder import BidirectionalDecoder


class Condenser(Pretraining):
    """MLM through a short head on the last layer's vector and the middle layer's tokens (Gao and Callan 2021).

    loss = MLM of the head, `layers` of the encoder's kind over [late vector; states after the lower half of the layers] (6 of
    12) + MLM of the encoder itself, whole words masked at `rate`. The head is discarded.
    """

    def __init__(self, architecture: Architecture, *, rate: float = 0.15, layers: int = 2) -> None:
        super().__init__(architecture, rate=rate)
        self.decoder = BidirectionalDecoder(architecture.encoder.config, layers=layers)

    def forward(self, batch: PretrainingBatch) -> tuple[Tensor, PretrainingMetrics]:
        """Parts `mlm` (late) and `head`."""
        return self.combine_losses(condenser_losses(self.decoder, self.encode(batch.anchors)))


def condenser_losses(head: BidirectionalDecoder, encoded: EncodedTexts) -> dict[str, TokenLoss]:
    """The masked-language-model losses of the last layer and of the head on [late vector; middle states]. Gao and Callan 2021."""
    states = head(encoded.pooled_vectors, encoded.middle_states, encoded.texts.tokens)
    return {"mlm": mlm_loss(encoded.states, encoded.texts, encoded.encoder), "head": mlm_loss(states, encoded.texts, encoded.encoder)}
