"""coCondenser: Condenser plus a contrastive loss between spans of one document (Gao and Callan 2022)."""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from moeir.architectures.base import Architecture
from moeir.pretraining.base import Pretraining, PretrainingMetrics, TokenLoss, check_minimum, concatenate_texts
from moeir.pretraining.batches import PretrainingBatch
from moeir.pretraining.condenser import condenser_losses
from moeir.pretraining.decoder import BidirectionalDecoder


class Cocondenser(Pretraining):
    """Condenser on two spans of each document, and a contrastive loss between their vectors over the batch (Gao and Callan 2022).

    loss = late MLM + MLM of the head + `contrastive_weight` · mean over spans of -log softmax(inner product with its partner) over
    all other spans of the batch except itself, no temperature.
    """

    context: ClassVar[str] = "span"

    def __init__(self, architecture: Architecture, *, rate: float = 0.15, layers: int = 2, contrastive_weight: float = 1.0) -> None:
        super().__init__(architecture, rate=rate)
        check_minimum("contrastive_weight", contrastive_weight, 0)
        self.decoder = BidirectionalDecoder(architecture.encoder.config, layers=layers)
        self.weights = {"contrastive": contrastive_weight}

    def forward(self, batch: PretrainingBatch) -> tuple[Tensor, PretrainingMetrics]:
        """Parts `mlm` (late), `head` and `contrastive`."""
        assert batch.contexts is not None
        encoded = self.encode(concatenate_texts(batch.anchors, batch.contexts))
        return self.combine_losses(
            condenser_losses(self.decoder, encoded) | {"contrastive": span_contrastive_loss(self._gather_vectors(encoded.vectors))},
            self.weights,
        )

    def _gather_vectors(self, vectors: Tensor) -> Tensor:
        """Vectors of all processes: first all anchors, then all contexts; only this process's have a gradient."""
        if self.communicator is None:
            return vectors
        halves = vectors.chunk(2)
        by_process = self.communicator.all_gather(halves, "the vectors of a step")
        by_process[self.communicator.rank] = list(halves)
        return torch.cat([torch.cat(parts) for parts in zip(*by_process, strict=True)])


def span_contrastive_loss(vectors: Tensor) -> TokenLoss:
    """Contrastive loss of vectors [2 B, H], where b and B + b are spans of one document: each against all others. Gao and Callan 2022."""
    count = len(vectors)
    with torch.autocast(vectors.device.type, enabled=False):
        scores = vectors.float() @ vectors.float().T  # [2 B, 2 B]
    scores = scores.masked_fill(torch.eye(count, dtype=torch.bool, device=scores.device), float("-inf"))
    partners = torch.arange(count, device=scores.device).roll(count // 2)
    return TokenLoss(F.cross_entropy(scores, partners), (scores.argmax(1) == partners).sum(), count, is_global=True)
