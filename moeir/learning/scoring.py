"""The batch that an objective gets, the output that it returns, and the scores and losses that most objectives start from."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from moeir.architectures.base import EncoderOutput
from moeir.learning import losses
from moeir.representations.sparse import Sparse


@dataclass(frozen=True)
class EncodedBatch:
    """Q encoded queries and N = Q · (1 + n) encoded documents: of each query its positive, then its n negatives.

    `ignore_mask` [Q, N] marks other queries' documents that are known positives of the query; `teacher_scores` [Q, 1 + n] has a teacher's
    scores of each query's own documents, if there is a teacher.
    """

    queries: EncoderOutput
    documents: EncoderOutput
    ignore_mask: Tensor
    step: int
    steps: int
    teacher_scores: Tensor | None = None

    @property
    def group_size(self) -> int:
        """Documents of one query, 1 + n."""
        return len(self.documents) // len(self.queries)

    @cached_property
    def own_columns(self) -> Tensor:
        """[Q, 1 + n] the columns of each query's own documents."""
        return self.positive_columns[:, None] + torch.arange(self.group_size, device=self.ignore_mask.device)

    @cached_property
    def positive_columns(self) -> Tensor:
        """[Q] the column of each query's positive."""
        return torch.arange(len(self.queries), device=self.ignore_mask.device) * self.group_size


StepMetrics = dict[str, float | Tensor]  # by name; tensors stay on the device until they are logged


@dataclass(frozen=True)
class ObjectiveOutput:
    """The loss to backpropagate, and the step's metrics for `metrics.jsonl`."""

    loss: Tensor
    metrics: StepMetrics


def batch_scores(batch: EncodedBatch) -> dict[str, Tensor]:
    """Each trained score [Q, N] of all queries and all documents of the batch: one expert's, or the sum of several experts'."""
    scores_by_name = {}
    for name, experts in batch.queries.score_groups.items():
        parts = [batch.queries[expert].scores(batch.documents[expert]) for expert in experts]
        scores_by_name[name] = parts[0] if len(parts) == 1 else torch.stack(parts).sum(0)
    return scores_by_name


def has_sparse_expert(batch: EncodedBatch, name: str) -> bool:
    """Whether a trained score includes a sparse expert."""
    return any(isinstance(batch.queries[expert], Sparse) for expert in batch.queries.score_groups[name])


def contrastive_per_score(batch: EncodedBatch, scores: dict[str, Tensor]) -> tuple[dict[str, Tensor], StepMetrics]:
    """Contrastive loss of each score for each query [Q], over all documents of the batch; and its means as metrics."""
    losses_by_score = {name: losses.info_nce(score, batch.positive_columns, batch.ignore_mask) for name, score in scores.items()}
    return losses_by_score, {f"loss.{name}": loss.detach().mean() for name, loss in losses_by_score.items()}


def with_loss(loss: Tensor, facts: StepMetrics) -> StepMetrics:
    """The metrics of a step, its loss first."""
    return {"loss": loss.detach(), **facts}
