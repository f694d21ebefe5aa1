"""A vocabulary head without a transform: the states themselves against the word embeddings."""

import torch
from torch import Tensor, nn


class RawVocabularyHead(nn.Module):
    """logit = h · Eᵀ + bias (the shorter reading of CoT-MoTE eq. 4); stands where an encoder's vocabulary head stands."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    def forward(self, states: Tensor) -> Tensor:
        """[T, H] -> [T, H], unchanged."""
        return states
