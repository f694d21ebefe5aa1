"""coCondenser: Condenser plus a contrastive loss between spans of one document (Gao and Callan 2022)."""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from moeir.architectures.base import Architecture
from moeir.pretraining.base import Facts, Loss, Pretraining, check_number, joined
from moeir.pretraining.batches import Batch
from moeir.pretraining.condensing import condensed
from moeir.pretraining.decoder import BidirectionalDecoder


class Cocondenser(Pretraining):
    """Condenser on two spans of each document, and a contrastive loss between their vectors over the batch (Gao and Callan 2022).

    loss = late MLM + MLM of the head + `contrastive_weight` · mean over spans of -log softmax(inner product with its partner) over
    all other spans of the batch except itself, no temperature.
    """

    context: ClassVar[str] = "span"

    def __init__(self, architecture: Architecture, *, rate: float = 0.15, layers: int = 2, contrastive_weight: float = 1.0) -> None:
        super().__init__(architecture, rate=rate)
        check_number("contrastive_weight", contrastive_weight, 0)
        self.decoder = BidirectionalDecoder(architecture.encoder.shape, layers=layers)
        self.weights = {"contrastive": contrastive_weight}

    def forward(self, batch: Batch) -> tuple[Tensor, Facts]:
        """Parts `mlm` (late), `head` and `contrastive`."""
        assert batch.contexts is not None
        encoded = self.encode(joined(batch.anchors, batch.contexts))
        return self.outcome(condensed(self.decoder, encoded) | {"contrastive": contrasted(self._everyones(encoded.vectors))}, self.weights)

    def _everyones(self, vectors: Tensor) -> Tensor:
        """Vectors of all processes: first all anchors, then all contexts; only this process's have a gradient."""
        if self.others is None:
            return vectors
        halves = vectors.chunk(2)
        by_process = self.others.all_of(halves, "the vectors of a step")
        by_process[self.others.rank] = list(halves)
        return torch.cat([torch.cat(parts) for parts in zip(*by_process, strict=True)])


def contrasted(vectors: Tensor) -> Loss:
    """Contrastive loss of vectors [2 B, H], where b and B + b are spans of one document: each against all others. Gao and Callan 2022."""
    count = len(vectors)
    with torch.autocast(vectors.device.type, enabled=False):
        scores = vectors.float() @ vectors.float().T  # [2 B, 2 B]
    scores = scores.masked_fill(torch.eye(count, dtype=torch.bool, device=scores.device), float("-inf"))
    partners = torch.arange(count, device=scores.device).roll(count // 2)
    return Loss(F.cross_entropy(scores, partners), (scores.argmax(1) == partners).sum(), count, whole=True)
