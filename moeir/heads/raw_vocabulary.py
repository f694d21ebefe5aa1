"""An MLM head without a transform, and fitted initial weights for MLM heads that a checkpoint lacks."""

import torch
from torch import Tensor, nn


class UntransformedMlmHead(nn.Module):
    """logit = h · Eᵀ + bias (the literal reading of CoT-MoTE eq. 4); replaces an encoder's vocabulary head."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    def forward(self, states: Tensor) -> Tensor:
        """[T, H] -> [T, H], unchanged."""
        return states
