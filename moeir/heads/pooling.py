"""One vector per text: a token's state, a mean or the maximum of several, and linear maps of it; or a map of the first (COIL's [CLS] part,
Gao et al. 2021)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from moeir.backbones.layers import make_projection
from moeir.backbones.packed_tokens import PackedTokens
from moeir.errors import UsageError
from moeir.kernels.precision import normalize
from moeir.parsing import check_choice, is_count
from moeir.representations.dense import Dense

POOLINGS = ("cls", "mean", "last", "max", "weighted_mean")
ACTIVATIONS = {one.__name__.lower(): one for one in (nn.Identity, nn.Tanh, nn.GELU, nn.ReLU, nn.SiLU, nn.Sigmoid)}


class VectorMap(nn.Module):
    """A linear map of vectors to a width, such as 768, 768-bias or 768-bias-tanh, followed by an activation."""

    def __init__(self, size: int, text: str) -> None:
        super().__init__()
        width, *words = text.split("-")
        names = [word for word in words if word in ACTIVATIONS]
        if not is_count(width) or len(names) > 1 or sorted(words) != sorted([*names, *(["bias"] if "bias" in words else [])]):
            expected = f"a width, as in 768, 768-bias or 768-bias-tanh (with one of {', '.join(ACTIVATIONS)})"
            raise UsageError(f"projections={text}: expected {expected}")
        self.linear = make_projection(size, int(width), "projections", bias="bias" in words)
        self.activation = ACTIVATIONS[names[0] if names else "identity"]()

    def forward(self, vectors: Tensor) -> Tensor:
        """[B, H] -> [B, D]."""
        mapped: Tensor = self.activation(self.linear(vectors))
        return mapped


class PoolingHead(nn.Module):
    """The state of the first token (`cls`, without pooler: CAME eq. 6) or of the `last`, or the `mean` or `max` over all attended tokens.

    `weighted_mean`: the weight of a token is its number in the text, from 1 (Muennighoff 2022). `projections` are `VectorMap`s of the
    pooled vector of width `hidden`.
    """

    kind = Dense.kind

    def __init__(self, *, pooling: str = "cls", normalise: bool = False, hidden: int = 0, projections: Sequence[str] = ()) -> None:
        super().__init__()
        check_choice("pooling", pooling, POOLINGS)
        self.pooling, self.normalise = pooling, normalise
        self.projections = nn.ModuleList()
        for text in projections:
            self.projections.append(VectorMap(self.projections[-1].linear.out_features if self.projections else hidden, text))

    def forward(self, states: Tensor, tokens: PackedTokens) -> Dense:
        """states [T, H] -> vectors [B, H], or [B, D] by the last of the projections, in float32."""
        vectors = pool_states(self.pooling, states.float(), tokens)
        for projection in self.projections:
            vectors = projection(vectors)
        vectors = vectors.float()
        return Dense(normalize(vectors) if self.normalise else vectors)


def pool_states(pooling: str, states: Tensor, tokens: PackedTokens) -> Tensor:
    """states [T, H] -> vectors [B, H]: of tokens that are attended to."""
    starts, texts = tokens.starts[:-1], tokens.text_indices()
    if pooling == "cls":
        return states.index_select(0, starts)
    attended = torch.ones_like(tokens.ids, dtype=torch.bool) if tokens.no_attend_mask is None else ~tokens.no_attend_mask
    if pooling == "last":
        return states.index_select(0, starts.index_add(0, texts, attended.long()) - 1)
    if pooling == "max":
        visible = states.masked_fill(~attended[:, None], float("-inf"))
        largest = torch.full_like(states[: len(tokens)], float("-inf"))
        return largest.scatter_reduce(0, texts[:, None].expand_as(states), visible, "amax")
    weights = attended * (tokens.positions() + 1) if pooling == "weighted_mean" else attended
    sums = states.new_zeros(len(tokens), states.shape[-1]).index_add(0, texts, states * weights[:, None])
    totals = states.new_zeros(len(tokens)).index_add(0, texts, weights.float()).clamp(min=1.0)
    return sums / totals[:, None]


class ProjectionHead(nn.Module):
    """A linear map with bias of the first token."""

    kind = Dense.kind

    def __init__(self, hidden: int, *, dimension: int) -> None:
        super().__init__()
        self.projection = make_projection(hidden, dimension, "cls")

    def forward(self, states: Tensor, tokens: PackedTokens) -> Dense:
        """states [T, H] -> vectors [B, D] in float32."""
        return Dense(self.projection(states.index_select(0, tokens.starts[:-1])).float())
