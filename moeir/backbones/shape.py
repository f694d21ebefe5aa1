"""The sizes and constants of an encoder, as the `config.json` of its family says them."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from moeir.errors import UsageError

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": lambda states: F.gelu(states, approximate="tanh"),
    "gelu_pytorch_tanh": lambda states: F.gelu(states, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "tanh": torch.tanh,
}


@dataclass(frozen=True)
class PreNorm:
    """Layers that normalise before each sub-layer, with rotary positions and gated feed-forwards (ModernBERT, Warner et al. 2024).

    `windows` and `thetas` have an entry for each layer: how many neighbours a token sees (None for all), the base of the rotation.
    """

    windows: tuple[int | None, ...]
    thetas: tuple[float, ...]
    attention_bias: bool = False
    feedforward_bias: bool = False
    norm_bias: bool = False
    head_bias: bool = False
    embedding_dropout: float = 0.0


@dataclass(frozen=True)
class PairHead:
    """How a family classifies a sequence: dropout if it stands `before`, a dense map (BERT's is its `pooler`), the activation,
    normalisation if there is one, dropout, and the output; of the first token, or of the mean."""

    activation: str = "tanh"
    dropout: float = 0.1
    pooler: bool = False
    before: bool = False
    norm: bool = False
    pooling: str = "cls"

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise UsageError(f"config.json: activation {self.activation!r} is not one of {', '.join(ACTIVATIONS)}")


@dataclass(frozen=True)
class Shape:
    """The sizes and constants of an encoder.

    `positions` is how many tokens it reads; its table of positions, if it has one (`prenorm` layers have none), has `first_position`
    rows before them. `embedding` is the width of the word embeddings where that is not `hidden`.
    """

    vocabulary: int
    hidden: int
    layers: int
    heads: int
    inner: int
    activation: str = "gelu"
    epsilon: float = 1e-12
    positions: int = 512
    segments: int = 2
    dropout: float = 0.1
    attention_dropout: float = 0.1
    spread: float = 0.02
    embedding: int | None = None
    first_position: int = 0
    head_activation: str | None = None
    prenorm: PreNorm | None = None
    pair_head: PairHead = PairHead(pooler=True)

    def __post_init__(self) -> None:
        for name in (self.activation, self.head_activation or self.activation):
            if name not in ACTIVATIONS:
                raise UsageError(f"config.json: activation {name!r} is not one of {', '.join(ACTIVATIONS)}")
        if self.hidden % self.heads:
            raise UsageError(f"config.json: hidden size {self.hidden} is not a multiple of {self.heads} attention heads")
        if self.prenorm is not None:
            self._check(self.prenorm)

    def _check(self, prenorm: PreNorm) -> None:
        if self.hidden // self.heads % 2:
            raise UsageError(f"config.json: attention heads are {self.hidden // self.heads} wide; rotary positions need an even width")
        for found in (prenorm.windows, prenorm.thetas):
            if len(found) != self.layers:
                raise UsageError(f"config.json: it names the attention of {len(found)} layers; expected {self.layers}")

    @property
    def width(self) -> int:
        """The width of the word embeddings."""
        return self.hidden if self.embedding is None else self.embedding
