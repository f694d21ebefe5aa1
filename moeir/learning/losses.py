"""What one expert's ranking of one query costs: losses return one number for each query, so that shares can weigh them."""

from torch import Tensor


def contrastive(scores: Tensor, positives: Tensor, ignored: Tensor) -> Tensor:
    """Negative log-likelihood of the positive among all candidates.

    scores [Q, N], positives [Q] columns, ignored [Q, N] true where a candidate is no negative -> [Q]. CAME eq. 7 and 8.

    >>> import torch
    >>> contrastive(torch.zeros(1, 4), torch.tensor([0]), torch.zeros(1, 4, dtype=torch.bool))
    tensor([1.3863])
    """
    kept = scores.masked_fill(ignored, float("-inf"))
    return kept.logsumexp(dim=1) - scores.gather(1, positives[:, None])[:, 0]
