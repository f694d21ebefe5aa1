"""Losses of score matrices, one number for each query, so that the shares of a competition can weigh them; the batch that an objective
gets, and the output that it returns."""

import torch.nn.functional as F
from torch import Tensor


def info_nce(scores: Tensor, positives: Tensor, ignore_mask: Tensor) -> Tensor:
    """Negative log-likelihood of the positive among all candidates.

    scores [Q, N], positives [Q] columns, ignore_mask [Q, N] true where a candidate is no negative -> [Q]. CAME eq. 7 and 8.

    >>> import torch
    >>> contrastive(torch.zeros(1, 4), torch.tensor([0]), torch.zeros(1, 4, dtype=torch.bool))
    tensor([1.3863])
    """
    candidates = scores.masked_fill(ignore_mask, float("-inf"))
    return candidates.logsumexp(dim=1) - scores.gather(1, positives[:, None])[:, 0]


def kl_divergence(scores: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """KL(teacher || student) of the softmax over a query's own documents, times temperature² (Hinton et al. 2015, §2).

    scores [Q, n], teacher [Q, n] -> [Q].

    >>> import torch
    >>> divergence(torch.tensor([[0.0, 0.0]]), torch.tensor([[1.0, 0.0]]), temperature=1.0)
    tensor([0.1109])
    """
    teacher_log_probabilities = (teacher / temperature).log_softmax(dim=1)
    return (teacher_log_probabilities.exp() * (teacher_log_probabilities - (scores / temperature).log_softmax(dim=1))).sum(
        1
    ) * temperature**2


def margin_mse(scores: Tensor, teacher: Tensor) -> Tensor:
    """Mean squared error of the margins between the positive, in the first column, and each negative. Hofstätter et al. 2020, eq. 6.

    scores [Q, 1 + n], teacher [Q, 1 + n] -> [Q].

    >>> import torch
    >>> margins(torch.tensor([[3.0, 1.0, 2.0]]), torch.tensor([[9.0, 8.0, 8.0]]))
    tensor([0.5000])
    """
    student, target = (side[:, :1] - side[:, 1:] for side in (scores, teacher))
    return (student - target).square().mean(1)


def binary_cross_entropy(scores: Tensor, positive_weight: float) -> Tensor:
    """Mean binary cross-entropy over a positive, in the first column and weighted, and its negatives.

    scores [Q, 1 + n] -> [Q]. Pointwise training of rerankers (Gao et al. 2021, LCE; Nogueira and Cho 2019).

    >>> import torch
    >>> binary(torch.tensor([[0.0, 0.0], [2.0, -2.0]]), positive_weight=1.0)
    tensor([0.6931, 0.1269])
    """
    positive, negatives = F.softplus(-scores[:, :1]) * positive_weight, F.softplus(scores[:, 1:])
    return (positive.sum(1) + negatives.sum(1)) / scores.shape[1]
