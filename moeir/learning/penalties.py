"""What is asked of representations besides ranking: few active terms."""

import torch
from torch import Tensor

from moeir.representations.sparse import Sparse


def flops(texts: Sparse) -> Tensor:
    """Expected products of two texts' terms: Σ over terms of (mean weight in the batch)². Paria et al. 2020; SPLADE.

    >>> flops(Sparse.from_matrix(torch.tensor([[2.0, 0.0], [0.0, 4.0]])))
    tensor(5.)
    """
    sums = torch.zeros(texts.vocabulary, device=texts.weights.device).index_add(0, texts.terms.long(), texts.weights.abs())
    return (sums / len(texts)).square().sum()


def ramp(step: int, steps: int) -> float:
    """Quadratic growth from 0 to 1 over `steps`, then 1 (SPLADE); no steps, no ramp.

    >>> ramp(5, 10), ramp(10, 10), ramp(3, 0)
    (0.25, 1.0, 1.0)
    """
    return 1.0 if steps <= 0 or step >= steps else (step / steps) ** 2
