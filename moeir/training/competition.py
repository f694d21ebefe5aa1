"""Competition weights (CAME): each expert's share of a query's loss, from how well it scores the query's positive among its candidates."""

from collections.abc import Mapping

import torch
from torch import Tensor

from moeir.errors import UsageError

TIES = ("average", "optimistic", "pessimistic")
RECENT_QUERIES, EARLIER_QUERIES = 32, 256  # of a kind, over which a running mean of its loss forgets


def positive_ranks(scores: Tensor, positives: Tensor, ignore_mask: Tensor, ties: str = "average") -> Tensor:
    """Rank of the positive among its candidates, from 1.

    scores [Q, N], positives [Q] columns, ignore_mask [Q, N] true where a candidate does not count -> [Q]. `average` puts a positive in
    the middle of its ties, so that an expert with constant scores neither wins nor loses.

    >>> positive_ranks(torch.tensor([[2.0, 3.0, 2.0]]), torch.tensor([0]), torch.zeros(1, 3, dtype=torch.bool))
    tensor([2.5000])
    """
    if ties not in TIES:
        raise UsageError(f"ties={ties}: expected one of {', '.join(TIES)}")
    positive = scores.gather(1, positives[:, None])
    others = ~ignore_mask & (torch.arange(scores.shape[1], device=scores.device) != positives[:, None])
    above, equal = ((scores > positive) & others).sum(1), ((scores == positive) & others).sum(1)
    part = {"average": 0.5, "optimistic": 0.0, "pessimistic": 1.0}[ties]
    return 1.0 + above + part * equal


def expert_shares(quality: Tensor, temperature: float) -> Tensor:
    """Each expert's share of a query's loss: softmax over experts of quality / temperature; no gradient.

    quality [E, Q], how well each expert scores the query's positive -> [E, Q], summing to 1 over experts. CAME eq. 11, whose quality is
    1 / rank.

    >>> expert_shares(1 / torch.tensor([[1.0], [2.0], [4.0]]), temperature=0.5)[:, 0]
    tensor([0.6285, 0.2312, 0.1402])
    """
    if temperature <= 0:
        raise UsageError(f"temperature={temperature}: expected more than 0")
    return torch.softmax(quality / temperature, dim=0).detach()


class LearningSpeed:
    """How fast the loss of each kind of query falls for each expert: the part of its earlier mean that its recent mean is below, 0 to 1.

    Both are means over all queries so far, n queries ago weighted by (1 - 1/w)^n, w of 256 and of 32 queries of the kind, and 0 before the
    first one. A pair that is hard but learnable keeps its shares by it; one that is hopeless has 0, as has one that has learned all.
    `tensors` are the state, float32 of [2, kinds, E] sums and [2, kinds] weights, which `update` changes in place.

    >>> speed = LearningSpeed(kinds=1, experts=2)
    >>> for loss in (2.0, 1.0): speed.update(torch.tensor([[loss], [3.0]]), torch.tensor([0]))
    >>> speed.of(torch.tensor([0]))[:, 0]
    tensor([0.0046, 0.0000])
    """

    def __init__(self, kinds: int, experts: int) -> None:
        self.tensors: Mapping[str, Tensor] = {"sums": torch.zeros(2, kinds, experts), "weights": torch.zeros(2, kinds)}

    def update(self, losses: Tensor, kinds: Tensor) -> None:
        """Add the losses [E, Q] of queries of some kinds [Q]."""
        sums, weights = self.tensors.values()
        chosen = torch.nn.functional.one_hot(kinds.cpu(), weights.shape[1]).float()  # [Q, kinds]
        counts = chosen.sum(0)
        means = chosen.T @ losses.detach().float().cpu().T / counts.clamp(min=1)[:, None]
        for row, queries in enumerate((RECENT_QUERIES, EARLIER_QUERIES)):
            kept = (1 - 1 / queries) ** counts
            weights[row] = kept * weights[row] + (1 - kept)
            sums[row] = kept[:, None] * sums[row] + (1 - kept)[:, None] * means

    def of(self, kinds: Tensor) -> Tensor:
        """[E, Q] of queries of some kinds [Q]."""
        sums, weights = self.tensors.values()
        recent, earlier = sums / weights.clamp(min=torch.finfo(weights.dtype).tiny)[..., None]
        return ((earlier - recent) / earlier.clamp(min=1e-6)).clamp(0, 1)[kinds.cpu()].T.to(kinds.device)


def permute_queries(shares: Tensor, step: int) -> Tensor:
    """Every query gets the shares of another one: a control with the same mean share of each expert, which ignores what a query needs.

    shares [E, Q] -> [E, Q]. The permutation is one cycle through all queries, so no query keeps its own shares if there are at least two.
    It depends on the step and the number of queries only: all processes use the same, and so does a resumed training.

    >>> permute_queries(torch.tensor([[0.1, 0.7], [0.9, 0.3]]), step=0)
    tensor([[0.7000, 0.1000],
            [0.3000, 0.9000]])
    """
    order = torch.randperm(shares.shape[1], generator=torch.Generator().manual_seed(step))
    source = torch.empty_like(order)
    source[order] = order.roll(1)
    return shares.index_select(1, source.to(shares.device, non_blocking=True))
