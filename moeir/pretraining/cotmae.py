"""CoT-MAE: a text is decoded from the vector of another span of its document, or, in CoT-MAE-qc, a query from that of its span."""

from functools import partial

from torch import Tensor

from moeir.architectures.base import Architecture, StepMetrics
from moeir.pretraining.base import Pretraining, TokenLoss, align_by_length, check_weights, concatenate_texts, mlm_loss
from moeir.pretraining.batches import PretrainingBatch
from moeir.pretraining.decoder import BidirectionalDecoder, CausalDecoder


class Cotmae(Pretraining):
    """Contextual masked auto-encoder: a small decoder reconstructs a span from its neighbour's vector (Wu et al. 2023).

    loss = `mlm_weight` · MLM of both spans at `rate` + MLM of the decoder, `layers` of the encoder's kind, over [vector of one; the other
    masked again at `decoder_rate`]; each a mean over all masked tokens of the batch. As published and as in caskcsg/ir `cotmae/`.
    """

    context = "span"

    def __init__(
        self, architecture: Architecture, *, rate: float = 0.30, decoder_rate: float = 0.45, layers: int = 2, mlm_weight: float = 1.0
    ) -> None:
        super().__init__(architecture, rate=rate, decoder_rate=decoder_rate, mlm_weight=mlm_weight)
        self.decoder = BidirectionalDecoder(architecture.encoder.config, layers=layers)

    def forward(self, batch: PretrainingBatch) -> tuple[Tensor, StepMetrics]:
        """Both spans go through the encoder in one batch, and through the decoder in another with their vectors swapped."""
        assert batch.contexts is not None and batch.decoder_anchors is not None and batch.decoder_contexts is not None
        encoded = self.encode(concatenate_texts(batch.anchors, batch.contexts))
        swapped = concatenate_texts(batch.decoder_contexts, batch.decoder_anchors)

        def decode(vectors: Tensor) -> TokenLoss:
            aligned, texts = align_by_length(vectors, swapped)
            states = self.decoder(aligned, encoded.encoder.embeddings(texts.tokens), texts.tokens)
            return mlm_loss(states, texts, encoded.encoder)

        decoder_loss = self.decoder_loss(encoded.vectors, decode, blocks=2)
        return self.combine_losses(self.mlm_losses({"mlm": encoded}) | {"decoder": decoder_loss})


class CotmaeQc(Pretraining):
    """Query as context: only the span is encoded; a causal decoder generates its query from its vector (Wu et al. 2023b).

    loss = `mlm_weight` · MLM of the span at `rate` + `decoder_weight` · CLM of the query by `layers` blocks that attend to the vector and
    the last `window` tokens (-1: all before). As in caskcsg/ir `cotmae-qc/`.
    """

    context = "query"

    def __init__(
        self,
        architecture: Architecture,
        *,
        rate: float = 0.30,
        layers: int = 1,
        window: int = 3,
        decoder_weight: float = 1.0,
        mlm_weight: float = 1.0,
    ) -> None:
        super().__init__(architecture, rate=rate, mlm_weight=mlm_weight)
        check_weights(decoder_weight=decoder_weight, mlm_weight=mlm_weight)
        self.decoder = CausalDecoder(architecture.encoder.config, layers=layers, window=window)
        self.weights["decoder"] = decoder_weight

    def forward(self, batch: PretrainingBatch) -> tuple[Tensor, StepMetrics]:
        """The query passes through the decoder only."""
        assert batch.contexts is not None
        encoded = self.encode(batch.anchors)
        decode = partial(self.decoder, texts=batch.contexts, encoder=encoded.encoder)
        decoder_loss = self.decoder_loss(encoded.vectors, decode)
        return self.combine_losses(self.mlm_losses({"mlm": encoded}) | {"decoder": decoder_loss})
