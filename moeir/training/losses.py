"""Losses of score matrices, one number for each query, so that the shares of a competition can weigh them; the batch that an objective
gets, the output that it returns, and the scores and losses that most objectives start from.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from moeir.analysis.training_monitor import UNIFORM_LOSS
from moeir.architectures.base import EncoderOutput, StepMetrics
from moeir.representations.dense import Dense
from moeir.training.competition import LearningSpeed


def info_nce(scores: Tensor, positives: Tensor, ignore_mask: Tensor) -> Tensor:
    """Negative log-likelihood of the positive among all candidates.

    scores [Q, N], positives [Q] columns, ignore_mask [Q, N] true where a candidate is no negative -> [Q]. CAME eq. 7 and 8.

    >>> info_nce(torch.zeros(1, 4), torch.tensor([0]), torch.zeros(1, 4, dtype=torch.bool))
    tensor([1.3863])
    """
    candidates = scores.masked_fill(ignore_mask, float("-inf"))
    return candidates.logsumexp(dim=1) - scores.gather(1, positives[:, None])[:, 0]


def kl_divergence(scores: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """KL(teacher || student) of the softmax over a query's own documents, times temperature² (Hinton et al. 2015, §2).

    scores [Q, n], teacher [Q, n] -> [Q].

    >>> kl_divergence(torch.tensor([[0.0, 0.0]]), torch.tensor([[1.0, 0.0]]), temperature=1.0)
    tensor([0.1109])
    """
    teacher_log_probabilities = (teacher / temperature).log_softmax(dim=1)
    differences = teacher_log_probabilities - (scores / temperature).log_softmax(dim=1)
    return (teacher_log_probabilities.exp() * differences).sum(1) * temperature**2


def margin_mse(scores: Tensor, teacher: Tensor) -> Tensor:
    """Mean squared error of the margins between the positive, in the first column, and each negative. Hofstätter et al. 2020, eq. 6.

    scores [Q, 1 + n], teacher [Q, 1 + n] -> [Q].

    >>> margin_mse(torch.tensor([[3.0, 1.0, 2.0]]), torch.tensor([[9.0, 8.0, 8.0]]))
    tensor([0.5000])
    """
    student, target = (side[:, :1] - side[:, 1:] for side in (scores, teacher))
    return (student - target).square().mean(1)


def binary_cross_entropy(scores: Tensor, positive_weight: float) -> Tensor:
    """Mean binary cross-entropy over a positive, in the first column and weighted, and its negatives.

    scores [Q, 1 + n] -> [Q]. Pointwise training of rerankers (Gao et al. 2021, LCE; Nogueira and Cho 2019).

    >>> binary_cross_entropy(torch.tensor([[0.0, 0.0], [2.0, -2.0]]), positive_weight=1.0)
    tensor([0.6931, 0.1269])
    """
    positive, negatives = F.softplus(-scores[:, 0]) * positive_weight, F.softplus(scores[:, 1:])
    return (positive + negatives.sum(1)) / scores.shape[1]


@dataclass(frozen=True)
class EncodedBatch:
    """Q encoded queries and N = Q · (1 + n) encoded documents: of each query its positive, then its n negatives.

    `ignore_mask` [Q, N] marks other queries' documents that are known positives of the query; `teacher_scores` [Q, 1 + n] has a teacher's
    scores of each query's own documents, if there is a teacher. `shorter` has, for each dimension in which dense experts are trained
    besides their whole one, their representations of queries and of documents; `loss_weights` the weights of these losses, if not 1.
    `kinds` [Q] numbers the kind of each query, and `speed` has how fast each kind's losses fell so far.
    """

    queries: EncoderOutput
    documents: EncoderOutput
    ignore_mask: Tensor
    step: int
    steps: int
    teacher_scores: Tensor | None = None
    shorter: Mapping[int, tuple[Mapping[str, Dense], Mapping[str, Dense]]] = field(default_factory=dict)
    loss_weights: Mapping[int, float] = field(default_factory=dict)
    kinds: Tensor | None = None
    speed: LearningSpeed | None = None

    def weigh(self, losses_by_score: Mapping[str, Tensor]) -> list[Tensor]:
        """The loss of each score times its weight, which that of `global.64` has as one of a shorter vector."""
        dimensions = [(loss, name.rpartition(".")[2]) for name, loss in losses_by_score.items()]
        return [loss * self.loss_weights.get(int(one), 1.0) if one.isdecimal() else loss for loss, one in dimensions]

    @property
    def group_size(self) -> int:
        """Documents of one query, 1 + n."""
        return self.documents.text_count // self.queries.text_count

    @cached_property
    def own_columns(self) -> Tensor:
        """[Q, 1 + n] the columns of each query's own documents."""
        return self.positive_columns[:, None] + torch.arange(self.group_size, device=self.ignore_mask.device)

    @cached_property
    def positive_columns(self) -> Tensor:
        """[Q] the column of each query's positive."""
        return torch.arange(self.queries.text_count, device=self.ignore_mask.device) * self.group_size


@dataclass(frozen=True)
class ObjectiveOutput:
    """The loss to backpropagate, and the step's metrics for `metrics.jsonl`."""

    loss: Tensor
    metrics: StepMetrics


def batch_scores(batch: EncodedBatch) -> dict[str, Tensor]:
    """Each trained score [Q, N] of all queries and all documents of the batch: one expert's, or the sum of several experts'; then, as
    `global.64`, those of `shorter` vectors."""
    scores_by_name, nested_scores = {}, {}
    for name, experts in batch.queries.score_groups.items():
        parts = {expert: batch.queries[expert].scores(batch.documents[expert]) for expert in experts}
        scores_by_name[name] = _add_scores(parts)
        for dimension, (queries, documents) in batch.shorter.items():
            shorter_parts = {expert: queries[expert].scores(documents[expert]) for expert in experts if expert in queries}
            nested_scores |= {f"{name}.{dimension}": _add_scores(parts | shorter_parts)} if shorter_parts else {}
    return scores_by_name | nested_scores


def _add_scores(parts: dict[str, Tensor]) -> Tensor:
    first, *others = parts.values()
    return torch.stack([first, *others]).sum(0) if others else first


def contrastive_per_score(batch: EncodedBatch, scores: dict[str, Tensor]) -> tuple[dict[str, Tensor], StepMetrics]:
    """Contrastive loss of each score for each query [Q], over all documents of the batch; and as metrics its means, and the loss of a model
    that gives all candidates the same score: ln(candidates)."""
    losses_by_score = {name: info_nce(score, batch.positive_columns, batch.ignore_mask) for name, score in scores.items()}
    facts: StepMetrics = {f"loss.{name}": loss.detach().mean() for name, loss in losses_by_score.items()}
    return losses_by_score, facts | {UNIFORM_LOSS: (~batch.ignore_mask).sum(1).float().log().mean()}
