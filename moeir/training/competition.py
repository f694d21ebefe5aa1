"""Competition weights (CAME): each expert's share of a query's loss, from its rank of the query's positive."""

import torch
from torch import Tensor

from moeir.errors import UsageError

TIES = ("average", "optimistic", "pessimistic")


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


def expert_shares(ranks: Tensor, temperature: float) -> Tensor:
    """Each expert's share of a query's loss: softmax over experts of (1 / rank) / temperature; no gradient.

    ranks [E, Q] -> [E, Q], summing to 1 over experts. CAME eq. 11.

    >>> expert_shares(torch.tensor([[1.0], [2.0], [4.0]]), temperature=0.5)[:, 0]
    tensor([0.6285, 0.2312, 0.1402])
    """
    if temperature <= 0:
        raise UsageError(f"temperature={temperature}: expected more than 0")
    return torch.softmax(1.0 / ranks / temperature, dim=0).detach()
