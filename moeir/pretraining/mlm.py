"""Masked language modelling alone, through Condenser's head, and with coCondenser's contrastive loss between spans of a document."""

import torch
import torch.nn.functional as F
from torch import Tensor

from moeir.architectures.base import Architecture, StepMetrics
from moeir.pretraining.base import EncodedTexts, Pretraining, TokenLoss, check_minimum, concatenate_texts, mlm_loss
from moeir.pretraining.batches import PretrainingBatch
from moeir.pretraining.decoder import BidirectionalDecoder


class Mlm(Pretraining):
    """Masked language modelling: predict the masked tokens of each span (Devlin et al. 2019).

    Spans are encoded as documents: an expert or encoder for queries is not trained.
    """

    def __init__(self, architecture: Architecture, *, rate: float = 0.15) -> None:
        super().__init__(architecture, rate=rate)

    def forward(self, batch: PretrainingBatch) -> tuple[Tensor, StepMetrics]:
        """Mean cross-entropy over all masked tokens of the batch."""
        encoded = self.encode(batch.anchors)
        return self.combine_losses({"mlm": mlm_loss(encoded.states, encoded.texts, encoded.encoder)})


class Condenser(Pretraining):
    """MLM through a short head on the last layer's vector and the middle layer's tokens (Gao and Callan 2021).

    loss = MLM of the head, `layers` of the encoder's kind over [late vector; states after the lower half of the layers] (6 of
    12) + `mlm_weight` · MLM of the encoder itself, whole words masked at `rate`. The head is discarded.
    """

    def __init__(self, architecture: Architecture, *, rate: float = 0.15, layers: int = 2, mlm_weight: float = 1.0) -> None:
        super().__init__(architecture, rate=rate, mlm_weight=mlm_weight)
        self.decoder = BidirectionalDecoder(architecture.encoder.config, layers=layers)

    def forward(self, batch: PretrainingBatch) -> tuple[Tensor, StepMetrics]:
        """Parts `mlm` (late) and `head`."""
        return self.combine_losses(condenser_losses(self, self.decoder, self.encode(batch.anchors)))


def condenser_losses(objective: Pretraining, head: BidirectionalDecoder, encoded: EncodedTexts, *, blocks: int = 1) -> dict[str, TokenLoss]:
    """The masked-language-model losses of the last layer and of the head on [late vector; middle states]. Gao and Callan 2021."""
    order = encoded.original_order.argsort()

    def decode(vectors: Tensor) -> TokenLoss:
        states = head(vectors.index_select(0, order), encoded.middle_states, encoded.texts.tokens)
        return mlm_loss(states, encoded.texts, encoded.encoder)

    return objective.mlm_losses({"mlm": encoded}) | {"head": objective.decoder_loss(encoded.vectors, decode, blocks=blocks)}


class Cocondenser(Pretraining):
    """Condenser on two spans of each document, and a contrastive loss between their vectors over the batch (Gao and Callan 2022).

    loss = `mlm_weight` · late MLM + MLM of the head + `contrastive_weight` · mean over spans of -log softmax(inner product with its
    partner) over all other spans of the batch except itself, no temperature.
    """

    context = "span"

    def __init__(
        self, architecture: Architecture, *, rate: float = 0.15, layers: int = 2, contrastive_weight: float = 1.0, mlm_weight: float = 1.0
    ) -> None:
        super().__init__(architecture, rate=rate, mlm_weight=mlm_weight)
        check_minimum("contrastive_weight", contrastive_weight, 0)
        self.decoder = BidirectionalDecoder(architecture.encoder.config, layers=layers)
        self.weights["contrastive"] = contrastive_weight

    def forward(self, batch: PretrainingBatch) -> tuple[Tensor, StepMetrics]:
        """Parts `mlm` (late), `head` and `contrastive`."""
        assert batch.contexts is not None
        encoded = self.encode(concatenate_texts(batch.anchors, batch.contexts))
        contrastive = span_contrastive_loss(self._gather_vectors(encoded.vectors))
        return self.combine_losses(condenser_losses(self, self.decoder, encoded, blocks=2) | {"contrastive": contrastive})

    def _gather_vectors(self, vectors: Tensor) -> Tensor:
        """Vectors of all processes: first all anchors, then all contexts; only this process's have a gradient."""
        halves = vectors.chunk(2)
        by_process = self.process_group.all_gather(halves, "the vectors of a step")
        by_process[self.process_group.rank] = list(halves)
        return torch.cat([torch.cat(parts) for parts in zip(*by_process, strict=True)])


def span_contrastive_loss(vectors: Tensor) -> TokenLoss:
    """Contrastive loss of vectors [2 B, H], where b and B + b are spans of one document: each against all others. Gao and Callan 2022."""
    count = len(vectors)
    with torch.autocast(vectors.device.type, enabled=False):
        scores = vectors.float() @ vectors.float().T  # [2 B, 2 B]
    scores = scores.masked_fill(torch.eye(count, dtype=torch.bool, device=scores.device), float("-inf"))
    partners = torch.arange(count, device=scores.device).roll(count // 2)
    return TokenLoss(F.cross_entropy(scores, partners), (scores.argmax(1) == partners).sum(), count, is_global=True)
