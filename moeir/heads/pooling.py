"""One vector per text: the first token's state, the mean of all, or a linear map of the first (COIL's [CLS] part, Gao et al. 2021)."""

import torch
from torch import Tensor, nn

from moeir.backbones.layers import make_projection
from moeir.backbones.packed_tokens import PackedTokens
from moeir.errors import UsageError
from moeir.kernels.precision import normalize
from moeir.parsing import check_choice
from moeir.representations.dense import Dense

POOLINGS = ("cls", "mean")


class PoolingHead(nn.Module):
    """`cls`: the last layer's first token, no pooler, no projection (CAME eq. 6). `mean`: over all attended tokens, without
    `pool_prefix` but for the first `unpooled_tokens` of a side."""

    kind = Dense.kind

    def __init__(self, *, pooling: str = "cls", normalise: bool = False, pool_prefix: bool = True) -> None:
        super().__init__()
        check_choice("pooling", pooling, POOLINGS)
        if pooling == "cls" and not pool_prefix:
            raise UsageError("pool_prefix=false: leaves the prefix of texts out of their mean; expected pooling=mean")
        self.pooling, self.normalise, self.pool_prefix = pooling, normalise, pool_prefix
        self.unpooled_tokens: dict[str, int] = {}  # of the prefix of each side

    def forward(self, states: Tensor, tokens: PackedTokens) -> Dense:
        """states [T, H] -> vectors [B, H] in float32."""
        states = states.float()
        if self.pooling == "mean":
            vectors = _mean(states, tokens, self.unpooled_tokens.get(tokens.side, 0))
        else:
            vectors = states.index_select(0, tokens.starts[:-1])
        return Dense(normalize(vectors) if self.normalise else vectors)


def _mean(states: Tensor, tokens: PackedTokens, unpooled: int) -> Tensor:
    attended = torch.ones_like(tokens.ids, dtype=torch.bool) if tokens.no_attend_mask is None else ~tokens.no_attend_mask
    if unpooled:
        attended &= tokens.positions() >= unpooled
    sums = states.new_zeros(len(tokens), states.shape[-1]).index_add(0, tokens.text_indices(), states * attended[:, None])
    counts = states.new_zeros(len(tokens)).index_add(0, tokens.text_indices(), attended.float())
    return sums / counts.clamp(min=1.0)[:, None]


class ProjectionHead(nn.Module):
    """A linear map with bias of the first token, followed by an optional `layer_norm`."""

    kind = Dense.kind

    def __init__(self, hidden: int, *, dimension: int = 768, layer_norm: bool = False) -> None:
        super().__init__()
        self.projection = make_projection(hidden, dimension, "cls")
        self.norm = nn.LayerNorm(dimension) if layer_norm else None

    def forward(self, states: Tensor, tokens: PackedTokens) -> Dense:
        """states [T, H] -> vectors [B, D] in float32."""
        vectors = self.projection(states.index_select(0, tokens.starts[:-1])).float()
        return Dense(vectors if self.norm is None else self.norm(vectors).float())
