"""RetroMAE: a lightly masked span is encoded and reconstructed from its vector by an enhanced decoder (Xiao et al. 2022)."""

from torch import Tensor

from moeir.architectures.base import Architecture
from moeir.errors import UsageError
from moeir.pretraining.base import PretrainingMetrics, Pretraining, mlm_loss
from moeir.pretraining.batches import PretrainingBatch
from moeir.pretraining.enhanced import EnhancedDecoder


class Retromae(Pretraining):
    """Asymmetric masking: the encoder sees most of a span, a one-layer decoder predicts every token from the vector and few others.

    loss = MLM at `rate` + mean cross-entropy of every token but the special ones, each predicted from the vector, its position and a
    sample of the other tokens in which each is missing with probability `decoder_rate` (Xiao et al. 2022, enhanced decoding). The samples
    follow from the text and its masks, so batches need no second masks.
    """

    def __init__(self, architecture: Architecture, *, rate: float = 0.30, decoder_rate: float = 0.5) -> None:
        super().__init__(architecture, rate=rate)
        if not 0 <= decoder_rate < 1:
            raise UsageError(f"decoder_rate={decoder_rate}: expected 0 or more and less than 1, the share of masked tokens")
        self.decoder = EnhancedDecoder(architecture.encoder.config, rate=decoder_rate)

    def forward(self, batch: PretrainingBatch) -> tuple[Tensor, PretrainingMetrics]:
        """Parts `mlm` and `decoder`."""
        encoded = self.encode(batch.anchors)
        decoder_loss = self.decoder(encoded.vectors, batch.anchors, encoded.encoder, self.architecture.special_tokens)
        return self.combine_losses({"mlm": mlm_loss(encoded.states, encoded.texts, encoded.encoder), "decoder": decoder_loss})
