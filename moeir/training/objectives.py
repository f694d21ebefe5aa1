"""Objectives: share times loss, plus regularizers, of one batch. A function whose first parameter is `batch` is an `--objective`."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from moeir import variants
from moeir.architectures.base import EncoderOutput, StepMetrics, concatenate_outputs
from moeir.architectures.checkpoint import RetrievalModel
from moeir.distributed import ProcessGroup
from moeir.errors import UsageError
from moeir.parsing import is_count, parse_value
from moeir.representations.dense import Dense
from moeir.training import competition, losses
from moeir.training.losses import EncodedBatch, ObjectiveOutput, batch_scores, contrastive_per_score
from moeir.training.regularizers import DEFAULT_WEIGHTS, RegularizerWeights

Objective: TypeAlias = Callable[[EncodedBatch], ObjectiveOutput]
SHARES = ("rank", "loss", "learnability")  # what the experts compete by


def contrastive(batch: EncodedBatch, *, regularizers: RegularizerWeights = DEFAULT_WEIGHTS) -> ObjectiveOutput:
    """Σ of the contrastive losses of all scores, in-batch negatives; FLOPS regulariser for sparse experts, entropy for routers.

    `flops_query`, `flops_document`: default 0.01, 0 for an expert trained within a sum (mote) or of a text's own terms (bge-m3).
    `flops_ramp`: steps over which it grows. `entropy_sign`: maximise or as-printed. `entropy_of`: instance (each decision) or batch.
    `by_side`: that of a batch and `load_balance` apply to queries and to documents, not to both together.
    """
    losses_by_score, facts = contrastive_per_score(batch, batch_scores(batch))
    return _sum_losses(batch, losses_by_score, facts, regularizers)


def competitive(
    batch: EncodedBatch,
    *,
    standardised: float = 0.2,
    temperature: float = 0.5,
    shares: str = "rank",
    permuted: bool = False,
    rank_scope: str = "own",
    ties: str = "average",
    normalise_standardised: bool = False,
    regularizers: RegularizerWeights = DEFAULT_WEIGHTS,
) -> ObjectiveOutput:
    """CAME: first all experts learn alike; then each query weights the losses by how well each expert ranks its positive.

    `shares`: rank (the paper's 1 / rank), loss, or learnability. `permuted`: control, each query gets another's shares. `rank_scope`: own
    (the query's documents) or batch. `ties`: average, optimistic or pessimistic. FLOPS and routers: as for contrastive.

    `shares=learnability`: by how fast the loss of an expert on a kind of query falls, so that what is hard but learned keeps its loss, and
    what teaches nothing loses it. Kinds are the data sets of --sampling-rate; without, the quarter of its distinct tokens that a query's
    positive has. The speed is by how much the mean of about 32 queries of the kind is below that of 256, relative to it, before the step.

    With --matryoshka experts rank by their whole vectors, and an expert's share weighs the loss of each of its dimensions.

    `normalise_standardised`: the weights of the standardised stage sum to 1, as those of the competition do (eq. 10). In the paper each
    is 1 (eq. 9), so that the same FLOPS weight is E times as strong against the losses of E experts once they compete; with
    `normalise_standardised=true` its relation to them is the same in both stages, as any comparison of the stages needs.
    """
    if not 0.0 <= standardised <= 1.0:
        raise UsageError(f"competitive:standardised={standardised}: expected a ratio of the steps, 0 to 1")
    score_matrices, names = batch_scores(batch), list(batch.queries.score_groups)
    losses_by_score, facts = contrastive_per_score(batch, score_matrices)
    ranks, quality = _rank_positives(batch, losses_by_score, {name: score_matrices[name] for name in names}, shares, rank_scope, ties)
    weights = competition.expert_shares(quality, temperature)
    if permuted:
        weights = competition.permute_queries(weights, batch.step)
    share_facts = _competition_metrics(names, ranks, weights)
    competing = batch.step >= round(standardised * batch.steps)
    if not competing:
        weights = torch.ones_like(weights) / (len(weights) if normalise_standardised else 1)
    owners = [names.index(name if name in names else name.rpartition(".")[0]) for name in losses_by_score]  # of global.64 it is global
    output = _sum_losses(batch, losses_by_score, facts, regularizers, torch.stack([weights[owner] for owner in owners]))
    return replace(output, metrics={**output.metrics, "competing": float(competing), **share_facts})


def kl(
    batch: EncodedBatch, *, temperature: float = 1.0, contrastive: float = 0.0, regularizers: RegularizerWeights = DEFAULT_WEIGHTS
) -> ObjectiveOutput:
    """Distillation of a teacher's distribution over each query's own documents; `contrastive`: weight of the contrastive loss."""
    if temperature <= 0:
        raise UsageError(f"kl:temperature={temperature}: expected more than 0")
    return _distillation_loss(batch, lambda scores, teacher: losses.kl_divergence(scores, teacher, temperature), contrastive, regularizers)


def margin_mse(batch: EncodedBatch, *, contrastive: float = 0.0, regularizers: RegularizerWeights = DEFAULT_WEIGHTS) -> ObjectiveOutput:
    """Distillation of a teacher's margins between positive and negatives into each score; `contrastive`: weight of the contrastive loss."""
    return _distillation_loss(batch, losses.margin_mse, contrastive, regularizers)


def lce(batch: EncodedBatch, *, temperature: float = 1.0) -> ObjectiveOutput:
    """LCE: contrastive loss over each query's own documents, without in-batch negatives; for cross-encoders, or any retriever."""
    if temperature <= 0:
        raise UsageError(f"lce:temperature={temperature:g}: expected more than 0")

    def own_contrastive(own: Tensor) -> Tensor:
        first_column = torch.zeros(len(own), dtype=torch.int64, device=own.device)
        return losses.info_nce(own / temperature, first_column, torch.zeros_like(own, dtype=torch.bool))

    output = _own_documents_loss(batch, own_contrastive)
    return replace(output, metrics={**output.metrics, losses.UNIFORM_LOSS: math.log(batch.group_size)})


def bce(batch: EncodedBatch, *, positive_weight: float = 1.0) -> ObjectiveOutput:
    """Pointwise binary cross-entropy for rerankers: is each document relevant; `--negatives N` and `positive_weight=N` balance them."""
    if positive_weight <= 0:
        raise UsageError(f"bce:positive_weight={positive_weight:g}: expected more than 0")
    return _own_documents_loss(batch, lambda own: losses.binary_cross_entropy(own, positive_weight))


def self_distillation(
    batch: EncodedBatch, *, start: int = 0, lexical_weight: float = 0.3, lexical_loss: float = 0.1, block: int = 0
) -> ObjectiveOutput:
    """BGE-M3: the experts and their weighted sum learn contrastively; from step `start` on each also learns the sum's distribution.

    (global + sum + 0.1 lexical + local) / 4, then with (KL to global + 0.1 KL to lexical + KL to local) / 3 half and half (Chen et al.
    2024, §3.3). `lexical_weight` is of its scores in the sum, `lexical_loss` of its losses; those of others are 1. `block`: queries whose
    documents the scores are compared on, but for those of the global expert, which are on the whole batch: the queries of one process
    where the publishers train on several. 0: the whole batch for all.
    """
    if min(start, block) < 0 or not math.isfinite(lexical_weight) or not math.isfinite(lexical_loss):
        raise UsageError(f"self-distillation:start={start},block={block}: expected whole numbers from 0, and finite weights")
    score_matrices, names, ignored = batch_scores(batch), list(batch.queries.score_groups), batch.ignore_mask
    if block:
        query_blocks = torch.arange(batch.queries.text_count, device=ignored.device) // block
        ignored = ignored | (query_blocks[:, None] != query_blocks.repeat_interleave(batch.group_size))
    weights, loss_weights = ({"lexical": weight} for weight in (lexical_weight, lexical_loss))
    total = torch.stack([weights.get(name, 1.0) * score_matrices[name] for name in names]).sum(0)
    masks = {name: batch.ignore_mask if name.partition(".")[0] == "global" else ignored for name in score_matrices}
    own = {name: losses.info_nce(score, batch.positive_columns, masks[name]) for name, score in score_matrices.items()}
    sum_loss = losses.info_nce(total, batch.positive_columns, ignored)
    weighted = (loss_weights.get(name, 1.0) * value for name, value in zip(own, batch.weigh(own), strict=True))
    loss = (sum_loss + sum(weighted)) / (1 + len(names))
    facts: StepMetrics = {f"loss.{name}": value.detach().mean() for name, value in (*own.items(), ("sum", sum_loss))}
    if batch.step >= start:
        lowest = torch.finfo(total.dtype).min  # not -inf, whose difference from itself is none
        teacher = total.detach().masked_fill(ignored, lowest)
        divergences = {
            name: losses.kl_divergence(score.masked_fill(ignored, lowest), teacher, 1.0) for name, score in score_matrices.items()
        }
        weighted = (loss_weights.get(name, 1.0) * value for name, value in zip(divergences, batch.weigh(divergences), strict=True))
        loss = (loss + sum(weighted) / len(names)) / 2
        facts |= {f"kl.{name}": value.detach().mean() for name, value in divergences.items()}
    return ObjectiveOutput(loss.mean(), {"loss": loss.detach().mean(), **facts})


NEEDS_TEACHER = (kl, margin_mse)  # objectives that need teacher scores
NEEDS_OWN_NEGATIVES = (kl, margin_mse, lce, bce)  # objectives of a query's own documents


def nest_dimensions(objective: Objective, dimensions: str, checkpoint: RetrievalModel) -> Objective:
    """An objective that trains the dense expert in some more `dimensions` (512,256,…), by the first numbers of its vectors: Kusupati et al.
    2022 (Matryoshka), eq. 1 with the weights behind colons (256:0.5), 1 without. The whole vector is always trained, with weight 1.
    UsageError for dimensions that it cannot have."""
    architecture, spec = checkpoint.architecture, variants.parse_spec(checkpoint.spec)
    if "dimension" not in dict(spec.options) or "global" not in architecture.heads:
        raise UsageError(f"--matryoshka: {spec.name} has no dense expert with an option `dimension` of shorter vectors; leave it out")
    pairs = [word.strip().partition(":") for word in dimensions.split(",")]
    if not all(is_count(number) for number, _, _ in pairs):
        raise UsageError(f"--matryoshka {dimensions}: expected numbers of 1 or more, as in 512,256,128,64, or with weights, 256:0.5,64:0.3")
    weights = {int(number): float(parse_value(weight or "1", "float", f"--matryoshka {number}")) for number, _, weight in pairs}
    if min(weights.values()) <= 0:
        raise UsageError(f"--matryoshka {dimensions}: expected weights above 0")
    numbers, width = sorted(weights, reverse=True), architecture.dimension or architecture.full_width
    if numbers[0] > width:
        raise UsageError(f"--matryoshka {numbers[0]}: the vectors have {width} numbers; expected dimensions of 1 to {width}")
    if weights.get(width, 1.0) != 1.0:
        raise UsageError(f"--matryoshka {width}:{weights[width]:g}: the whole vector weighs 1; set the weights of shorter ones beside it")
    normalised = architecture.normalised_experts

    def truncate(encoded: EncoderOutput, number: int) -> dict[str, Dense]:
        return {name: one.truncate(number, normalise=name in normalised) for name, one in encoded.items() if isinstance(one, Dense)}

    def nested(batch: EncodedBatch) -> ObjectiveOutput:
        shorter = {number: (truncate(batch.queries, number), truncate(batch.documents, number)) for number in numbers if number < width}
        return objective(replace(batch, shorter=shorter, loss_weights=weights))

    return nested


OWN_TEMPERATURE = (kl, lce)  # objectives whose option `temperature` divides the scores


def divides_scores(objective: partial[ObjectiveOutput]) -> bool:
    """Whether an objective was given a temperature of its own, by which it divides the scores."""
    return objective.func in OWN_TEMPERATURE and "temperature" in objective.keywords


def competition_start(objective: partial[ObjectiveOutput], steps: int) -> int | None:
    """How many of `steps` steps experts learn alike, before they compete; None for an objective in which they never do."""
    if objective.func is not competitive:
        return None
    return round((competitive.__kwdefaults__ | objective.keywords)["standardised"] * steps)


def goes_by_speed(objective: partial[ObjectiveOutput]) -> bool:
    """Whether an objective's shares are by how fast losses fall, whose state a training keeps."""
    return objective.keywords.get("shares") == "learnability"


def validate_options(objective: Callable[[EncodedBatch], ObjectiveOutput], negatives: int) -> None:
    """Validate objective options early, with a dummy batch of one query and vectors of one number."""
    group = 1 + min(negatives, 1)
    query, documents = (EncoderOutput({"global": Dense(torch.ones(count, 1))}) for count in (1, group))
    kinds, speed = torch.zeros(1, dtype=torch.int64), competition.LearningSpeed(1, 1)
    ignored, teacher = torch.zeros(1, group, dtype=torch.bool), torch.zeros(1, group)
    objective(EncodedBatch(query, documents, ignored, 0, 1, teacher, kinds=kinds, speed=speed))


def _own_documents_loss(batch: EncodedBatch, loss_function: Callable[[Tensor], Tensor]) -> ObjectiveOutput:
    """Mean over queries of the sum over scores of `loss_function` on the query's own documents [Q, 1 + n]."""
    if batch.group_size < 2:
        raise UsageError("--negatives 0: this objective compares a positive with its own negatives; expected at least 1")
    losses_by_score = {name: loss_function(score.gather(1, batch.own_columns)) for name, score in batch_scores(batch).items()}
    loss = torch.stack(batch.weigh(losses_by_score)).sum(0).mean()
    facts = {f"loss.{name}": value.detach().mean() for name, value in losses_by_score.items()}
    return ObjectiveOutput(loss, {"loss": loss.detach(), **facts})


def _distillation_loss(
    batch: EncodedBatch, loss_function: Callable[[Tensor, Tensor], Tensor], contrastive_weight: float, regularizers: RegularizerWeights
) -> ObjectiveOutput:
    """Each score's loss against the teacher on the query's own documents, plus `contrastive_weight` times the contrastive loss."""
    if batch.teacher_scores is None or batch.group_size < 2:
        missing = "teacher scores in the examples" if batch.teacher_scores is None else "negatives to compare with, not --negatives 0"
        raise UsageError(f"distillation needs {missing}")
    if contrastive_weight < 0:
        raise UsageError(f"contrastive={contrastive_weight:g}: expected 0 or more")
    score_matrices = batch_scores(batch)
    losses_by_score = {
        name: loss_function(score.gather(1, batch.own_columns), batch.teacher_scores) for name, score in score_matrices.items()
    }
    facts: StepMetrics = {f"loss.{name}": value.detach().mean() for name, value in losses_by_score.items()}
    if contrastive_weight:
        contrastive_losses, contrastive_facts = contrastive_per_score(batch, score_matrices)
        losses_by_score = {name: value + contrastive_weight * contrastive_losses[name] for name, value in losses_by_score.items()}
        facts |= {name.replace("loss.", "contrastive.", 1): value for name, value in contrastive_facts.items() if "." in name}
    return _sum_losses(batch, losses_by_score, facts, regularizers)


def _sum_losses(
    batch: EncodedBatch,
    losses_by_score: dict[str, Tensor],
    facts: StepMetrics,
    regularizers: RegularizerWeights,
    shares: Tensor | float = 1.0,
) -> ObjectiveOutput:
    """Mean over queries of the summed losses, each times its share [scores, Q], plus every regularizer."""
    flops_penalty, flops_facts = regularizers.flops_penalty(batch.queries, batch.documents, batch.step)
    router_penalty, router_facts = regularizers.router_penalty(batch.queries, batch.documents)
    loss = (shares * torch.stack(batch.weigh(losses_by_score))).sum(0).mean() + flops_penalty + router_penalty
    return ObjectiveOutput(loss, {"loss": loss.detach(), **facts, **flops_facts, **router_facts})


@torch.no_grad()
def _rank_positives(
    batch: EncodedBatch, losses_by_score: dict[str, Tensor], scores: dict[str, Tensor], kind: str, scope: str, ties: str
) -> tuple[Tensor, Tensor]:
    """Of each query's positive by each score, among the query's own documents or the batch's, both [E, Q]: its rank, and the quality from
    which the shares are computed: 1 / rank (CAME eq. 11), minus the contrastive loss, or the speed at which the kind's loss falls.

    exp(-loss) is the positive's probability: of two experts with the same ranking the one with larger scores is the surer one. The rank
    does not depend on the scale of an expert's scores.
    """
    if scope not in ("own", "batch"):
        raise UsageError(f"rank_scope={scope}: expected own or batch")
    if kind not in SHARES:
        raise UsageError(f"shares={kind}: expected one of {', '.join(SHARES)}")
    owners = torch.arange(batch.documents.text_count, device=batch.ignore_mask.device) // batch.group_size
    others = owners != torch.arange(batch.queries.text_count, device=owners.device)[:, None]
    ignored, positives = batch.ignore_mask | others if scope == "own" else batch.ignore_mask, batch.positive_columns
    ranks = torch.stack([competition.positive_ranks(score, positives, ignored, ties) for score in scores.values()])
    if kind == "rank":
        return ranks, 1.0 / ranks
    if kind == "learnability":
        if batch.kinds is None or batch.speed is None:
            raise UsageError("shares=learnability: the batch has no kinds of queries, as finetune numbers them for a retriever")
        quality = batch.speed.of(batch.kinds)
        batch.speed.update(torch.stack([losses_by_score[name] for name in scores]), batch.kinds)
        return ranks, quality
    return ranks, -torch.stack([losses.info_nce(score, positives, ignored) for score in scores.values()])


def _competition_metrics(names: list[str], ranks: Tensor, shares: Tensor) -> StepMetrics:
    """Metrics of each expert: mean and spread of its share, mean rank, how often its share is strictly the largest. Of all: the entropy of
    shares, a mean over queries, and its exponential, the effective number of experts: 1 to E."""
    best, second = torch.cat([shares, torch.zeros_like(shares[:1])]).topk(2, dim=0).values
    wins = (shares > torch.where(shares == best, second, best)).float()
    means = torch.stack([shares, ranks.float(), wins]).mean(2)  # [3, E]
    rows = dict(zip(("share", "rank", "wins"), means, strict=True)) | {"spread": shares.std(1, correction=0)}
    entropy = torch.special.entr(shares).sum(0).mean()
    facts: StepMetrics = {"entropy.shares": entropy, "effective_experts": entropy.exp()}
    for number, name in enumerate(names):
        facts |= {f"{kind}.{name}": rows[kind][number] for kind in ("share", "spread", "rank", "wins")}
    return facts


def all_gather_encoded(own: EncoderOutput, process_group: ProcessGroup, moment: str) -> EncoderOutput:
    """The encoded texts of all processes end to end, by rank; only this process's have a gradient."""
    if process_group.size == 1:
        return own
    parts = []
    for rank, tensors in enumerate(process_group.all_gather(own.tensors(), moment)):
        others = iter(tensors)
        parts.append(own if rank == process_group.rank else own.map(lambda _, others=others: next(others)).drop_bounds())
    return concatenate_outputs(parts)
