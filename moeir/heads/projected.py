"""A linear map of the first token's state to a dense vector of any width (COIL's [CLS] part, Gao et al. 2021)."""

from torch import Tensor, nn

from moeir.backbones.tokens import PackedTokens
from moeir.errors import UsageError
from moeir.representations.dense import Dense


class ProjectionHead(nn.Module):
    """A linear map with bias of the first token, followed by an optional `layer_norm`."""

    def __init__(self, hidden: int, *, dimension: int = 768, layer_norm: bool = False) -> None:
        super().__init__()
        if dimension < 1:
            raise UsageError(f"cls dimension {dimension}: expected at least 1")
        self.projection = nn.Linear(hidden, dimension)
        nn.init.normal_(self.projection.weight, std=0.02)
        nn.init.zeros_(self.projection.bias)
        self.norm = nn.LayerNorm(dimension) if layer_norm else None

    def forward(self, states: Tensor, tokens: PackedTokens) -> Dense:
        """states [T, H] -> vectors [B, D] in float32."""
        vectors = self.projection(states.index_select(0, tokens.starts[:-1])).float()
        return Dense(vectors if self.norm is None else self.norm(vectors).float())
