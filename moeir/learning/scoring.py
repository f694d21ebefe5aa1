"""A batch as objectives see it, what they return, and the scores and losses that most of them begin with."""

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

    `ignored` [Q, N] marks documents that are known positives of the query but not the one in question; `teacher` [Q, 1 + n] has a
    teacher's scores of each query's own documents, if there is one.
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


Facts = dict[str, float | Tensor]  # of a step; those that lie on the device are read when they are wanted


@dataclass(frozen=True)
class Outcome:
    """A loss to step on, and what happened, for `metrics.jsonl`."""

    loss: Tensor
    facts: Facts


def scores(batch: Batch) -> dict[str, Tensor]:
    """Each trained score [Q, N] of all queries with all documents of the batch: an expert's, or the sum of several experts'."""
    scores_by_name = {}
    for name, experts in batch.queries.trained.items():
        parts = [batch.queries[expert].scores(batch.documents[expert]) for expert in experts]
        scores_by_name[name] = parts[0] if len(parts) == 1 else torch.stack(parts).sum(0)
    return scores_by_name


def sparse(batch: Batch, name: str) -> bool:
    """Whether a trained score has a sparse expert in it."""
    return any(isinstance(batch.queries[expert], Sparse) for expert in batch.queries.trained[name])


def ranking(batch: Batch, scores: dict[str, Tensor]) -> tuple[dict[str, Tensor], Facts]:
    """Each score's contrastive loss for each query [Q], over the whole batch's documents."""
    losses_by_score = {name: losses.contrastive(score, batch.positives, batch.ignored) for name, score in scores.items()}
    return losses_by_score, {f"loss.{name}": loss.detach().mean() for name, loss in losses_by_score.items()}


def told(loss: Tensor, facts: Facts) -> Facts:
    """The facts of a step, its loss first."""
    return {"loss": loss.detach(), **facts}
