"""The batch that an objective gets, the output that it returns, and the scores and losses that most objectives start from."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from moeir.architectures.base import Encoded
from moeir.learning import losses
from moeir.representations.sparse import Sparse


@dataclass(frozen=True)
class Batch:
    """Q encoded queries and N = Q · (1 + n) encoded documents: of each query its positive, then its n negatives.

    `ignore_mask` [Q, N] marks other queries' documents that are known positives of the query; `teacher_scores` [Q, 1 + n] has a teacher's
    scores of each query's own documents, if there is a teacher.
    """

    queries: Encoded
    documents: Encoded
    ignored: Tensor
    step: int
    steps: int
    teacher: Tensor | None = None

    @property
    def group(self) -> int:
        """Documents of one query, 1 + n."""
        return len(self.documents) // len(self.queries)

    @cached_property
    def own(self) -> Tensor:
        """[Q, 1 + n] the columns of each query's own documents."""
        return self.positives[:, None] + torch.arange(self.group, device=self.ignored.device)

    @cached_property
    def positives(self) -> Tensor:
        """[Q] the column of each query's positive."""
        return torch.arange(len(self.queries), device=self.ignored.device) * self.group


Facts = dict[str, float | Tensor]  # by name; tensors stay on the device until they are logged


@dataclass(frozen=True)
class Outcome:
    """The loss to backpropagate, and the step's metrics for `metrics.jsonl`."""

    loss: Tensor
    facts: Facts


def scores(batch: Batch) -> dict[str, Tensor]:
    """Each trained score [Q, N] of all queries and all documents of the batch: one expert's, or the sum of several experts'."""
    scores_by_name = {}
    for name, experts in batch.queries.trained.items():
        parts = [batch.queries[expert].scores(batch.documents[expert]) for expert in experts]
        scores_by_name[name] = parts[0] if len(parts) == 1 else torch.stack(parts).sum(0)
    return scores_by_name


def sparse(batch: Batch, name: str) -> bool:
    """Whether a trained score includes a sparse expert."""
    return any(isinstance(batch.queries[expert], Sparse) for expert in batch.queries.trained[name])


def ranking(batch: Batch, scores: dict[str, Tensor]) -> tuple[dict[str, Tensor], Facts]:
    """Contrastive loss of each score for each query [Q], over all documents of the batch; and its means as metrics."""
    losses_by_score = {name: losses.contrastive(score, batch.positives, batch.ignored) for name, score in scores.items()}
    return losses_by_score, {f"loss.{name}": loss.detach().mean() for name, loss in losses_by_score.items()}


def told(loss: Tensor, facts: Facts) -> Facts:
    """The metrics of a step, its loss first."""
    return {"loss": loss.detach(), **facts}
