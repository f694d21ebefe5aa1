"""Regularizers: FLOPS for few active terms, router entropy, load balance of experts."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from moeir.architectures.base import EncoderOutput, StepMetrics
from moeir.backbones.dispatch import RouterOutput
from moeir.errors import UsageError

ENTROPY_SIGNS = {"maximise": 1.0, "as-printed": -1.0}
ENTROPY_SCOPES = ("instance", "batch")
DEFAULT_FLOPS_WEIGHT = 0.01


def flops(mean_weights: Tensor) -> Tensor:
    """Expected products of two texts' terms: Σ over terms of (mean weight in the batch)². Paria et al. 2020; SPLADE.

    >>> flops(torch.tensor([1.0, 2.0]))
    tensor(5.)
    """
    return mean_weights.square().sum()


def quadratic_ramp(step: int, steps: int) -> float:
    """Quadratic growth from 0 to 1 over `steps`, then 1 (SPLADE); no steps, no ramp.

    >>> quadratic_ramp(5, 10), quadratic_ramp(10, 10), quadratic_ramp(3, 0)
    (0.25, 1.0, 1.0)
    """
    return 1.0 if steps <= 0 or step >= steps else (step / steps) ** 2


def negative_entropy(*sides: RouterOutput, scope: str = "instance") -> Tensor:
    """Negative entropy Σ p log p of a router: the mean over its decisions, or that of the batch's mean probabilities.

    TASER (Cheng et al. 2023), eq. 4, with the sign of its code: lowest for uniform decisions. With scope `batch` it is lowest where all
    experts are used equally, however confident each decision is. All sides weigh the same.

    >>> negative_entropy(RouterOutput.from_text_probabilities(torch.tensor([[0.5, 0.5], [1.0, 0.0]])))
    tensor(-0.3466)
    >>> negative_entropy(RouterOutput.from_text_probabilities(torch.tensor([[0.0, 1.0], [1.0, 0.0]])), scope="batch")
    tensor(-0.6931)
    """
    rows = [mean_probabilities(*sides)[None]] if scope == "batch" else [side.probabilities.float() for side in sides]
    tiny = torch.finfo(torch.float32).tiny
    return torch.stack([(chances * chances.clamp_min(tiny).log()).sum(1).mean() for chances in rows]).mean()


def load_balance(*sides: RouterOutput) -> Tensor:
    """E · Σ over experts of (share of the decisions it wins, a constant) · (its mean probability): 1 for uniform use of E experts.

    Fedus et al. 2022 (Switch Transformers), eq. 4. Of several sides shares and probabilities are the mean over sides: a batch has more
    documents than queries, and a router that gives each role an expert of its own uses both equally.

    >>> queries, documents = (RouterOutput.from_text_probabilities(torch.tensor([row] * 4)) for row in ([0.99, 0.01], [0.01, 0.99]))
    >>> load_balance(queries), load_balance(documents), load_balance(queries, documents)
    (tensor(1.9800), tensor(1.9800), tensor(1.))
    """
    usage = torch.stack([expert_usage(side) for side in sides]).mean(0)
    return len(usage) * (usage * mean_probabilities(*sides)).sum()


def mean_probabilities(*sides: RouterOutput) -> Tensor:
    """[E] mean probability of each expert, all sides weighing the same; with gradient."""
    return torch.stack([side.probabilities.float().mean(0) for side in sides]).mean(0)


def role_information(*sides: RouterOutput) -> Tensor:
    """Mutual information of a decision's expert and its side, in bits: 0 if all sides use the experts alike, 1 if the expert tells which of
    two sides a text is of. The expert is the arg-max; both sides weigh the same.

    >>> queries, documents = (RouterOutput.from_text_probabilities(torch.tensor(rows)) for rows in ([[0.9, 0.1]], [[0.9, 0.1], [0.2, 0.8]]))
    >>> role_information(queries, documents)
    tensor(0.3113)
    """
    usage = torch.stack([expert_usage(side) for side in sides])
    return (torch.special.entr(usage.mean(0)).sum() - torch.special.entr(usage).sum(1).mean()) / math.log(2)


def expert_usage(*sides: RouterOutput) -> Tensor:
    """The share of each expert in all decisions, which take the arg-max, or the `top_k` most probable: [E], constants.

    >>> expert_usage(RouterOutput.from_text_probabilities(torch.tensor([[0.75, 0.25], [0.5, 0.5], [0.25, 0.75]])))
    tensor([0.6667, 0.3333])
    """
    experts = sides[0].probabilities.shape[1]
    winners = torch.cat([side.choices.flatten() for side in sides])
    return (winners[:, None] == torch.arange(experts, device=winners.device)).float().mean(0)


@dataclass(frozen=True)
class RegularizerWeights:
    """Weights of the regularizers: the options of these names of every objective with `regularizers`.

    FLOPS defaults to 0.01 (CAME §4.2). For an expert that is trained as part of a summed score it defaults to 0: CoT-MoTE names no weight;
    so it does for one whose terms are the tokens of a text, as BGE-M3's.
    """

    flops_query: float | None = None
    flops_document: float | None = None
    flops_ramp: int = 0
    entropy: float = 0.01
    entropy_sign: str = "maximise"
    entropy_of: str = "instance"
    load_balance: float = 0.0
    by_side: bool = False

    def __post_init__(self) -> None:
        for name in ("flops_query", "flops_document", "flops_ramp", "entropy", "load_balance"):
            if (getattr(self, name) or 0) < 0:
                raise UsageError(f"{name}={getattr(self, name):g}: expected 0 or more")
        if self.entropy_sign not in ENTROPY_SIGNS:
            raise UsageError(f"entropy_sign={self.entropy_sign}: expected {' or '.join(ENTROPY_SIGNS)}")
        if self.entropy_of not in ENTROPY_SCOPES:
            raise UsageError(f"entropy_of={self.entropy_of}: expected {' or '.join(ENTROPY_SCOPES)}")

    def flops_penalty(self, queries: EncoderOutput, documents: EncoderOutput, step: int) -> tuple[Tensor | float, StepMetrics]:
        """The FLOPS penalty of every expert with weighted terms, both sides, and as metrics how many terms are active."""
        total: Tensor | float = 0.0
        facts: StepMetrics = {}
        ramp_factor = quadratic_ramp(step, self.flops_ramp)
        for name in queries.representations:
            is_free = name in queries.token_terms or any(name in group and len(group) > 1 for group in queries.score_groups.values())
            for side, texts, option in (("query", queries[name], self.flops_query), ("document", documents[name], self.flops_document)):
                if (usage := texts.term_usage()) is None:
                    continue
                penalty, weight = flops(usage[0]), (0.0 if is_free else DEFAULT_FLOPS_WEIGHT) if option is None else option
                total = total + weight * ramp_factor * penalty
                facts |= {f"flops.{name}.{side}": penalty.detach(), f"terms.{name}.{side}": usage[1]}
        return total, facts

    def router_penalty(self, queries: EncoderOutput, documents: EncoderOutput) -> tuple[Tensor | float, StepMetrics]:
        """The penalties of learned routers, means over routers; as metrics each router's entropy, expert usage and information on roles.

        `load_balance` and the entropy of a batch are of both sides together, or with `by_side` the mean over sides, which forbids an expert
        for each role. The entropy penalty applies to routers inside layers only: SB-MoE's gate has none in its paper,
        and experts that the weights were trained with, `top_k` of them weighted, would add less to their layer.
        """
        total: Tensor | float = 0.0
        facts: StepMetrics = {}
        pairs = {name: (router, documents.routing[name]) for name, router in queries.routing.items()}
        groups = {name: [(side,) for side in pair] if self.by_side else [pair] for name, pair in pairs.items()}
        layers = [group for name in groups if name.startswith("layer") and pairs[name][0].top_k is None for group in groups[name]]
        if layers and self.entropy:
            costs = [negative_entropy(*group, scope=self.entropy_of) for group in layers]
            total = total + self.entropy * ENTROPY_SIGNS[self.entropy_sign] * torch.stack(costs).mean()
        if pairs and self.load_balance:
            costs = [load_balance(*group) for name in groups for group in groups[name]]
            total = total + self.load_balance * torch.stack(costs).mean()
        for name, pair in pairs.items():
            facts[f"entropy.{name}"] = -negative_entropy(*pair).detach()
            facts |= {f"usage.{name}.{expert}": share for expert, share in enumerate(expert_usage(*pair))}
            facts[f"role_information.{name}"] = role_information(*pair)
        return total, facts


DEFAULT_WEIGHTS = RegularizerWeights()
