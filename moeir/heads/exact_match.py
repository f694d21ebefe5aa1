"""One vector per token with its term: late interaction between tokens of the same term (COIL, Gao et al. 2021)."""

import torch
from torch import Tensor, nn

from moeir.backbones.tokens import SpecialTokens, PackedTokens
from moeir.errors import UsageError
from moeir.kernels.attention import find_visible_keys
from moeir.representations.exact_match import ExactMatch


class CoilHead(nn.Module):
    """A linear map with bias, the same for queries and documents; terms are the token ids.

    [CLS] is left out on both sides, as it is no term. Options: `separator` keeps [SEP]; `layer_norm` after the map; `relu` after that.
    """

    def __init__(
        self,
        hidden: int,
        special_tokens: SpecialTokens,
        *,
        dimension: int = 32,
        separator: bool = False,
        layer_norm: bool = False,
        relu: bool = False,
    ) -> None:
        super().__init__()
        if dimension < 1:
            raise UsageError(f"exact dimension {dimension}: expected at least 1")
        self.projection = nn.Linear(hidden, dimension)
        nn.init.normal_(self.projection.weight, std=0.02)
        nn.init.zeros_(self.projection.bias)
        self.norm = nn.LayerNorm(dimension) if layer_norm else None
        self.relu = relu
        self._separator = None if separator else special_tokens.separator

    def forward(self, states: Tensor, tokens: PackedTokens) -> ExactMatch:
        """states [T, H] -> terms [T'], vectors [T', D] in float32; a text with special tokens only has none."""
        keep = torch.ones_like(tokens.ids, dtype=torch.bool).index_fill(0, tokens.starts[:-1], False)
        if self._separator is not None:
            keep &= tokens.ids != self._separator
        rows, starts = find_visible_keys(~keep, tokens.starts)
        vectors = self.projection(states.index_select(0, rows)).float()
        vectors = vectors if self.norm is None else self.norm(vectors).float()
        return ExactMatch(tokens.ids.index_select(0, rows), vectors.relu() if self.relu else vectors, starts)
