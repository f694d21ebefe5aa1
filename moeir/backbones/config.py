"""Sizes and constants of an encoder, read from the `config.json` of its family."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from moeir.errors import UsageError

MAX_EXPERTS = 1024
MAX_SIZES = {
    "vocabulary": 10_000_000,
    "hidden": 65_536,
    "layers": 1000,
    "heads": 1024,
    "intermediate_size": 65_536,
    "positions": 10_000_000,
}

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": lambda states: F.gelu(states, approximate="tanh"),
    "gelu_pytorch_tanh": lambda states: F.gelu(states, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "tanh": torch.tanh,
}


@dataclass(frozen=True)
class PreNormConfig:
    """Layers that normalise before each sub-layer, with rotary positions and gated feed-forwards (ModernBERT, Warner et al. 2024).

    `windows` and `thetas` have an entry per layer: the attention window in tokens (None for full attention), and the rotary base.
    """

    windows: tuple[int | None, ...]
    thetas: tuple[float, ...]
    attention_bias: bool = False
    feedforward_bias: bool = False
    norm_bias: bool = False
    head_bias: bool = False
    embedding_dropout: float = 0.0


@dataclass(frozen=True)
class ExpertsConfig:
    """Experts in place of the feed-forward of every layer whose number, from 0, is 1 more than a multiple of `every`: each token is mapped
    by the `top_k` of `count` that its gate prefers (nomic-embed-text-v2-moe, Nussbaum and Duderstadt 2025)."""

    count: int
    top_k: int
    every: int

    def __post_init__(self) -> None:
        if not 1 <= self.top_k <= self.count <= MAX_EXPERTS:
            sizes = f"moe_top_k is {self.top_k} of num_experts {self.count}"
            raise UsageError(f"config.json: {sizes}; expected at least 1 expert for a token, and at most {MAX_EXPERTS:,} in all")
        if self.every < 2:
            raise UsageError(f"config.json: moe_every_n_layers is {self.every}; expected 2 or more")


@dataclass(frozen=True)
class ClassificationHeadConfig:
    """Sequence classification head of a family: optional dropout first (`dropout_first`), a dense map (BERT's is its `pooler`), activation,
    optional normalisation, dropout, output; on the first token, or on the mean (`pooling`)."""

    activation: str = "tanh"
    dropout: float = 0.1
    pooler: bool = False
    dropout_first: bool = False
    norm: bool = False
    pooling: str = "cls"


@dataclass(frozen=True)
class EncoderConfig:
    """Sizes and constants of an encoder.

    `positions` is its maximum length in tokens; the position embeddings, if any, have `first_position` unused rows before them: `prenorm`
    layers have none, nor have post-normalised ones with a rotary base `theta`. `factorized_embedding_size` is the width of the word
    embeddings if it differs from `hidden`.
    """

    vocabulary: int
    hidden: int
    layers: int
    heads: int
    intermediate_size: int
    activation: str = "gelu"
    epsilon: float = 1e-12
    positions: int = 512
    segments: int = 2
    dropout: float = 0.1
    attention_dropout: float = 0.1
    initializer_range: float = 0.02
    factorized_embedding_size: int | None = None
    first_position: int = 0
    head_activation: str | None = None
    prenorm: PreNormConfig | None = None
    theta: float | None = None
    experts: ExpertsConfig | None = None
    classification_head: ClassificationHeadConfig = ClassificationHeadConfig(pooler=True)

    def __post_init__(self) -> None:
        for name in (self.activation, self.head_activation or self.activation, self.classification_head.activation):
            if name not in ACTIVATIONS:
                raise UsageError(f"config.json: activation {name!r} is not one of {', '.join(ACTIVATIONS)}")
        self.check_ranges()
        if self.hidden % self.heads:
            raise UsageError(f"config.json: hidden size {self.hidden} is not a multiple of {self.heads} attention heads")
        if not self.has_position_embeddings and self.hidden // self.heads % 2:
            raise UsageError(f"config.json: attention heads are {self.hidden // self.heads} wide; rotary positions need an even width")
        if self.prenorm is not None and len(self.prenorm.windows) != self.layers:
            raise UsageError(f"config.json: layer_types names the attention of {len(self.prenorm.windows)} layers; expected {self.layers}")

    def check_ranges(self) -> None:
        """UsageError for a size that no model has."""
        for name, most in MAX_SIZES.items():
            if not 1 <= getattr(self, name) <= most:
                raise UsageError(f"config.json: {name} is {getattr(self, name)}; expected 1 to {most:,}")

    @property
    def has_position_embeddings(self) -> bool:
        """Whether positions are embeddings, not rotary."""
        return self.prenorm is None and self.theta is None

    @property
    def embedding_size(self) -> int:
        """The width of the word embeddings."""
        return self.hidden if self.factorized_embedding_size is None else self.factorized_embedding_size
