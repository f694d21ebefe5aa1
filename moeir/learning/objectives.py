"""Share times loss, plus penalties: what a batch costs. A function here is an `--objective`."""

from dataclasses import dataclass

import torch
from torch import Tensor

from moeir.architectures.base import Encoded
from moeir.errors import UsageError
from moeir.learning import losses, penalties, weighting
from moeir.representations.sparse import Sparse


@dataclass(frozen=True)
class Batch:
    """Q encoded queries and N = Q · (1 + n) encoded documents: of each query its positive, then its n negatives.

    `ignored` [Q, N] marks documents that are known positives of the query but not the one in question.
    """

    queries: Encoded
    documents: Encoded
    ignored: Tensor
    step: int
    steps: int

    @property
    def group(self) -> int:
        """Documents of one query, 1 + n."""
        return len(self.documents) // len(self.queries)

    @property
    def positives(self) -> Tensor:
        """[Q] the column of each query's positive."""
        return torch.arange(len(self.queries), device=self.ignored.device) * self.group


@dataclass(frozen=True)
class Outcome:
    """A loss to step on, and what happened, for `metrics.jsonl`."""

    loss: Tensor
    facts: dict[str, float]


def contrastive(batch: Batch, *, flops_query: float = 0.01, flops_document: float = 0.01, flops_ramp: int = 0) -> Outcome:
    """Every expert learns every query: Σ of the experts' contrastive losses, in-batch negatives, FLOPS for sparse ones."""
    ranked, facts = _ranking(batch, _scores(batch))
    penalty, cost = _flops(batch, flops_query, flops_document, flops_ramp)
    loss = torch.stack(list(ranked.values())).sum(0).mean()
    return Outcome(loss + penalty, _told(loss + penalty, facts | cost))


def competitive(
    batch: Batch,
    *,
    standardised: float = 0.2,
    temperature: float = 0.5,
    rank_scope: str = "own",
    ties: str = "average",
    normalise_standardised: bool = False,
    flops_query: float = 0.01,
    flops_document: float = 0.01,
    flops_ramp: int = 0,
    flops_in_competition: bool = False,
) -> Outcome:
    """CAME: all experts learn alike for a ratio of the steps, then each query teaches those that rank its positive best."""
    if not 0.0 <= standardised <= 1.0:
        raise UsageError(f"competitive:standardised={standardised}: expected a ratio of the steps, 0 to 1")
    scores = _scores(batch)
    ranked, facts = _ranking(batch, scores)
    penalty, active = _flops(batch, flops_query, flops_document, flops_ramp)
    places = _ranks(batch, scores, rank_scope, ties)
    shares = weighting.shares(torch.stack(list(places.values())), temperature)
    competing = batch.step >= round(standardised * batch.steps)
    weights = shares if competing else torch.ones_like(shares) / (len(shares) if normalise_standardised else 1)
    if flops_in_competition:
        ranked = {name: cost + penalty if isinstance(batch.queries[name], Sparse) else cost for name, cost in ranked.items()}
    loss = (weights * torch.stack(list(ranked.values()))).sum(0).mean()
    total = loss if flops_in_competition else loss + penalty
    facts |= active | {"competing": float(competing)} | _standing(places, shares)
    return Outcome(total, _told(total, facts))


def _scores(batch: Batch) -> dict[str, Tensor]:
    """Each expert's scores [Q, N] of all queries with all documents of the batch."""
    return {name: queries.scores(batch.documents[name]) for name, queries in batch.queries.representations.items()}


def _ranking(batch: Batch, scores: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Each expert's contrastive loss for each query [Q], over the whole batch's documents."""
    ranked = {name: losses.contrastive(score, batch.positives, batch.ignored) for name, score in scores.items()}
    return ranked, {f"loss.{name}": float(cost.detach().mean()) for name, cost in ranked.items()}


@torch.no_grad()
def _ranks(batch: Batch, scores: dict[str, Tensor], scope: str, ties: str) -> dict[str, Tensor]:
    """Each expert's rank of each positive [Q]: among the query's own documents, or the batch's."""
    if scope not in ("own", "batch"):
        raise UsageError(f"rank_scope={scope}: expected own or batch")
    owners = torch.arange(len(batch.documents), device=batch.ignored.device) // batch.group
    others = owners != torch.arange(len(batch.queries), device=owners.device)[:, None]
    ignored = batch.ignored | others if scope == "own" else batch.ignored
    return {name: weighting.ranks(score, batch.positives, ignored, ties) for name, score in scores.items()}


def _flops(batch: Batch, query: float, document: float, steps: int) -> tuple[Tensor, dict[str, float]]:
    """The FLOPS penalty of every sparse expert, both sides, and how many terms are active."""
    total, facts = torch.zeros((), device=batch.ignored.device), {}
    strength = penalties.ramp(batch.step, steps)
    for name, queries in batch.queries.representations.items():
        if not isinstance(queries, Sparse):
            continue
        for side, texts, weight in (("query", queries, query), ("document", batch.documents[name], document)):
            assert isinstance(texts, Sparse)
            penalty = penalties.flops(texts)
            total = total + weight * strength * penalty
            facts[f"flops.{name}.{side}"] = float(penalty.detach())
            facts[f"terms.{name}.{side}"] = len(texts.terms) / len(texts)
    return total, facts


def _standing(places: dict[str, Tensor], shares: Tensor) -> dict[str, float]:
    """Who is winning: mean and spread of each expert's share, its mean rank, and how often its share is the strictly largest."""
    facts = {}
    for number, (name, place) in enumerate(places.items()):
        share = shares[number]
        rivals = torch.cat([shares[:number], shares[number + 1 :], torch.zeros_like(shares[:1])])
        facts[f"share.{name}"], facts[f"spread.{name}"] = float(share.mean()), float(share.std(correction=0))
        facts[f"rank.{name}"], facts[f"wins.{name}"] = float(place.mean()), float((share > rivals.amax(0)).float().mean())
    return facts


def _told(loss: Tensor, facts: dict[str, float]) -> dict[str, float]:
    return {"loss": float(loss.detach())} | facts
