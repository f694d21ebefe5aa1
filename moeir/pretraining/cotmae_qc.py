"""CoT-MAE-qc: a generated query is decoded from its span's vector (Wu et al. 2023b, query-as-context)."""

from typing import ClassVar

from torch import Tensor

from moeir.architectures.base import Architecture
from moeir.pretraining.base import Pretraining, PretrainingMetrics, check_minimum, mlm_loss
from moeir.pretraining.batches import PretrainingBatch
from moeir.pretraining.decoder import CausalDecoder


class CotmaeQc(Pretraining):
    """Query as context: only the span is encoded; a causal decoder generates its query from its vector (Wu et al. 2023b).

    loss = MLM of the span at `rate` + `decoder_weight` · CLM of the query by `layers` blocks that attend to the vector and the last
    `window` tokens (-1: all before). As in caskcsg/ir `cotmae-qc/`.
    """

    context: ClassVar[str] = "query"

    def __init__(
        self, architecture: Architecture, *, rate: float = 0.30, layers: int = 1, window: int = 3, decoder_weight: float = 1.0
    ) -> None:
        super().__init__(architecture, rate=rate)
        check_minimum("decoder_weight", decoder_weight, 0)
        self.decoder = CausalDecoder(architecture.encoder.config, layers=layers, window=window)
        self.weights = {"decoder": decoder_weight}

    def forward(self, batch: PretrainingBatch) -> tuple[Tensor, PretrainingMetrics]:
        """The query passes through the decoder only."""
        assert batch.contexts is not None
        encoded = self.encode(batch.anchors)
        decoder_loss = self.decoder(encoded.vectors, batch.contexts, encoded.encoder)
        return self.combine_losses({"mlm": mlm_loss(encoded.states, encoded.texts, encoded.encoder), "decoder": decoder_loss}, self.weights)
