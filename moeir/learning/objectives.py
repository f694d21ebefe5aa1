"""Objectives: share times loss, plus regularizers, of one batch. A function whose first parameter is `batch` is an `--objective`."""

from collections.abc import Callable

import torch
from torch import Tensor

from moeir.architectures.base import Encoded
from moeir.errors import UsageError
from moeir.learning import losses, penalties, weighting
from moeir.learning.scoring import Batch, Facts, Outcome, ranking, scores, sparse, told
from moeir.representations.dense import Dense


def contrastive(
    batch: Batch,
    *,
    flops_query: float | None = None,
    flops_document: float | None = None,
    flops_ramp: int = 0,
    entropy: float = 0.01,
    entropy_sign: str = "working",
    entropy_of: str = "instance",
    load_balance: float = 0.0,
) -> Outcome:
    """Σ of the contrastive losses of all scores, in-batch negatives; FLOPS regulariser for sparse experts, entropy for routers.

    `flops_query`, `flops_document`: default 0.01, 0 for an expert trained within a sum (mote). `flops_ramp`: steps over which it grows.
    `entropy_sign`: working or printed. `entropy_of`: instance (each decision) or batch.
    """
    regularizer_weights = penalties.Strengths(flops_query, flops_document, flops_ramp, entropy, entropy_sign, entropy_of, load_balance)
    losses_by_score, facts = ranking(batch, scores(batch))
    return _plain(batch, losses_by_score, facts, regularizer_weights)


def competitive(
    batch: Batch,
    *,
    standardised: float = 0.2,
    temperature: float = 0.5,
    rank_scope: str = "own",
    ties: str = "average",
    normalise_standardised: bool = False,
    flops_query: float | None = None,
    flops_document: float | None = None,
    flops_ramp: int = 0,
    flops_in_competition: bool = False,
    entropy: float = 0.01,
    entropy_sign: str = "working",
    entropy_of: str = "instance",
    load_balance: float = 0.0,
) -> Outcome:
    """CAME: experts learn equally for a ratio of the steps, then a query's loss is weighted to those that rank its positive best.

    `rank_scope`: own (the query's documents) or batch. `ties`: average, optimistic or pessimistic. `flops_ramp`: steps over which FLOPS
    grows. `entropy_sign`: working or printed. `entropy_of`: instance (each decision) or batch.
    """
    if not 0.0 <= standardised <= 1.0:
        raise UsageError(f"competitive:standardised={standardised}: expected a ratio of the steps, 0 to 1")
    regularizer_weights = penalties.Strengths(flops_query, flops_document, flops_ramp, entropy, entropy_sign, entropy_of, load_balance)
    score_matrices = scores(batch)
    losses_by_score, facts = ranking(batch, score_matrices)
    flops_penalty, flops_facts = regularizer_weights.sparse(batch.queries, batch.documents, batch.step)
    router_penalty, router_facts = regularizer_weights.routed(batch.queries, batch.documents)
    ranks_by_score = _ranks(batch, score_matrices, rank_scope, ties)
    shares = weighting.shares(torch.stack(list(ranks_by_score.values())), temperature)
    competing = batch.step >= round(standardised * batch.steps)
    weights = shares if competing else torch.ones_like(shares) / (len(shares) if normalise_standardised else 1)
    if flops_in_competition:
        losses_by_score = {name: cost + flops_penalty if sparse(batch, name) else cost for name, cost in losses_by_score.items()}
    loss = (weights * torch.stack(list(losses_by_score.values()))).sum(0).mean()
    total = (loss if flops_in_competition else loss + flops_penalty) + router_penalty
    facts |= flops_facts | router_facts | {"competing": float(competing)} | _standing(ranks_by_score, shares)
    return Outcome(total, told(total, facts))


def kl(
    batch: Batch,
    *,
    temperature: float = 1.0,
    contrastive: float = 0.0,
    flops_query: float | None = None,
    flops_document: float | None = None,
    flops_ramp: int = 0,
    entropy: float = 0.01,
    entropy_sign: str = "working",
    entropy_of: str = "instance",
    load_balance: float = 0.0,
) -> Outcome:
    """Distillation of a teacher's distribution over each query's own documents; `contrastive`: weight of the contrastive loss."""
    if temperature <= 0:
        raise UsageError(f"kl:temperature={temperature}: expected more than 0")
    regularizer_weights = penalties.Strengths(flops_query, flops_document, flops_ramp, entropy, entropy_sign, entropy_of, load_balance)
    return _distilled(batch, lambda scores, teacher: losses.divergence(scores, teacher, temperature), contrastive, regularizer_weights)


def margin_mse(
    batch: Batch,
    *,
    contrastive: float = 0.0,
    flops_query: float | None = None,
    flops_document: float | None = None,
    flops_ramp: int = 0,
    entropy: float = 0.01,
    entropy_sign: str = "working",
    entropy_of: str = "instance",
    load_balance: float = 0.0,
) -> Outcome:
    """Distillation of a teacher's margins between positive and negatives into each score; `contrastive`: weight of the contrastive loss."""
    regularizer_weights = penalties.Strengths(flops_query, flops_document, flops_ramp, entropy, entropy_sign, entropy_of, load_balance)
    return _distilled(batch, losses.margins, contrastive, regularizer_weights)


def lce(batch: Batch, *, temperature: float = 1.0) -> Outcome:
    """LCE: contrastive loss over each query's own documents, without in-batch negatives; for cross-encoders, or any retriever."""
    if temperature <= 0:
        raise UsageError(f"lce:temperature={temperature:g}: expected more than 0")
    return _localised(batch, lambda own: losses.contrastive(own / temperature, *_first(own)))


def bce(batch: Batch, *, positive_weight: float = 1.0) -> Outcome:
    """Pointwise binary cross-entropy for rerankers: is each document relevant; `--negatives 1` balances the classes."""
    if positive_weight <= 0:
        raise UsageError(f"bce:positive_weight={positive_weight:g}: expected more than 0")
    return _localised(batch, lambda own: losses.binary(own, positive_weight))


TAUGHT = (kl, margin_mse)  # objectives that need teacher scores


def rehearse(objective: Callable[[Batch], Outcome], negatives: int) -> None:
    """Validate objective options early, with a dummy batch of one query and vectors of one number."""
    group = 1 + min(negatives, 1)
    query, documents = (Encoded({"global": Dense(torch.ones(count, 1))}) for count in (1, group))
    objective(Batch(query, documents, torch.zeros(1, group, dtype=torch.bool), 0, 1, torch.zeros(1, group)))


def _localised(batch: Batch, cost: Callable[[Tensor], Tensor]) -> Outcome:
    """Mean over queries of the sum over scores of `loss_function` on the query's own documents [Q, 1 + n]."""
    if batch.group < 2:
        raise UsageError("--negatives 0: this objective compares a positive with its own negatives; expected at least 1")
    losses_by_score = {name: cost(score.gather(1, batch.own)) for name, score in scores(batch).items()}
    loss = torch.stack(list(losses_by_score.values())).sum(0).mean()
    return Outcome(loss, told(loss, {f"loss.{name}": value.detach().mean() for name, value in losses_by_score.items()}))


def _first(own: Tensor) -> tuple[Tensor, Tensor]:
    """Targets for [Q, 1 + n]: the positive is in the first column, and no candidate is ignored."""
    return torch.zeros(len(own), dtype=torch.int64, device=own.device), torch.zeros_like(own, dtype=torch.bool)


def _distilled(batch: Batch, cost: Callable[[Tensor, Tensor], Tensor], plain: float, regularizer_weights: penalties.Strengths) -> Outcome:
    """Each score's loss against the teacher on the query's own documents, plus `contrastive_weight` times the contrastive loss."""
    if batch.teacher is None or batch.group < 2:
        missing = "teacher scores in the examples" if batch.teacher is None else "negatives to compare with, not --negatives 0"
        raise UsageError(f"distillation needs {missing}")
    if plain < 0:
        raise UsageError(f"contrastive={plain:g}: expected 0 or more")
    score_matrices = scores(batch)
    losses_by_score = {name: cost(score.gather(1, batch.own), batch.teacher) for name, score in score_matrices.items()}
    facts: Facts = {f"loss.{name}": value.detach().mean() for name, value in losses_by_score.items()}
    if plain:
        contrastive_losses, contrastive_facts = ranking(batch, score_matrices)
        losses_by_score = {name: value + plain * contrastive_losses[name] for name, value in losses_by_score.items()}
        facts |= {name.replace("loss.", "contrastive.", 1): value for name, value in contrastive_facts.items()}
    return _plain(batch, losses_by_score, facts, regularizer_weights)


def _plain(batch: Batch, losses_by_score: dict[str, Tensor], facts: Facts, regularizer_weights: penalties.Strengths) -> Outcome:
    """Mean over queries of the summed losses, plus every regularizer."""
    flops_penalty, flops_facts = regularizer_weights.sparse(batch.queries, batch.documents, batch.step)
    router_penalty, router_facts = regularizer_weights.routed(batch.queries, batch.documents)
    loss = torch.stack(list(losses_by_score.values())).sum(0).mean() + flops_penalty + router_penalty
    return Outcome(loss, told(loss, facts | flops_facts | router_facts))


@torch.no_grad()
def _ranks(batch: Batch, scores: dict[str, Tensor], scope: str, ties: str) -> dict[str, Tensor]:
    """Rank of each query's positive by each score [Q], among the query's own documents or the batch's."""
    if scope not in ("own", "batch"):
        raise UsageError(f"rank_scope={scope}: expected own or batch")
    owners = torch.arange(len(batch.documents), device=batch.ignored.device) // batch.group
    others = owners != torch.arange(len(batch.queries), device=owners.device)[:, None]
    ignored = batch.ignored | others if scope == "own" else batch.ignored
    return {name: weighting.ranks(score, batch.positives, ignored, ties) for name, score in scores.items()}


def _standing(ranks_by_score: dict[str, Tensor], shares: Tensor) -> Facts:
    """Metrics of each expert: mean and spread of its share, mean rank, how often its share is strictly the largest; entropy of shares."""
    ranks = torch.stack(list(ranks_by_score.values())).float()  # [E, Q]
    best, second = torch.cat([shares, torch.zeros_like(shares[:1])]).topk(2, dim=0).values
    wins = (shares > torch.where(shares == best, second, best)).float()
    means = torch.stack([shares, ranks, wins]).mean(2)  # [3, E]
    rows = dict(zip(("share", "rank", "wins"), means, strict=True)) | {"spread": shares.std(1, correction=0)}
    facts: Facts = {"entropy.shares": torch.special.entr(shares).sum(0).mean()}
    for number, name in enumerate(ranks_by_score):
        facts |= {f"{kind}.{name}": rows[kind][number] for kind in ("share", "spread", "rank", "wins")}
    return facts
