"""Our own encoder of the BERT family: embeddings, layers, vocabulary head. The numbers are those of `transformers`, the batch is packed."""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from moeir.backbones.tokens import Tokens
from moeir.errors import UsageError
from moeir.kernels.attention import Layout, attention

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": lambda states: F.gelu(states, approximate="tanh"),
    "gelu_pytorch_tanh": lambda states: F.gelu(states, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}


@dataclass(frozen=True)
class Shape:
    """The sizes and constants of an encoder."""

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

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise UsageError(f"config.json: activation {self.activation!r} is not one of {', '.join(ACTIVATIONS)}")
        if self.hidden % self.heads:
            raise UsageError(f"config.json: hidden size {self.hidden} is not a multiple of {self.heads} attention heads")


class Embeddings(nn.Module):
    """Word, position and segment embeddings, added and normalised."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.words = nn.Embedding(shape.vocabulary, shape.hidden)
        self.places = nn.Embedding(shape.positions, shape.hidden)
        self.kinds = nn.Embedding(shape.segments, shape.hidden)
        self.norm = nn.LayerNorm(shape.hidden, eps=shape.epsilon)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, tokens: Tokens) -> Tensor:
        segments = torch.zeros_like(tokens.ids) if tokens.segments is None else tokens.segments
        added = self.words(tokens.ids) + self.kinds(segments) + self.places(tokens.positions())
        normed: Tensor = self.dropout(self.norm(added))
        return normed


class Attention(nn.Module):
    """Multi-head self-attention, its residual and normalisation."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.query, self.key, self.value, self.output = (nn.Linear(shape.hidden, shape.hidden) for _ in range(4))
        self.norm = nn.LayerNorm(shape.hidden, eps=shape.epsilon)
        self.dropout = nn.Dropout(shape.dropout)
        self.heads, self.attention_dropout = shape.heads, shape.attention_dropout

    def forward(self, states: Tensor, layout: Layout) -> Tensor:
        query, key, value = (part(states).unflatten(-1, (self.heads, -1)) for part in (self.query, self.key, self.value))
        mixed = attention(query, key, value, layout, self.attention_dropout if self.training else 0.0)
        added: Tensor = self.norm(states + self.dropout(self.output(mixed.flatten(-2))))
        return added


class FeedForward(nn.Module):
    """Two linear maps around an activation, with residual and normalisation: what a mixture of experts replaces."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.up = nn.Linear(shape.hidden, shape.inner)
        self.down = nn.Linear(shape.inner, shape.hidden)
        self.norm = nn.LayerNorm(shape.hidden, eps=shape.epsilon)
        self.dropout = nn.Dropout(shape.dropout)
        self.activation = ACTIVATIONS[shape.activation]

    def change(self, states: Tensor) -> Tensor:
        """What is added to the states, before dropout: [n, H] -> [n, H]."""
        added: Tensor = self.down(self.activation(self.up(states)))
        return added

    def joined(self, states: Tensor, change: Tensor) -> Tensor:
        """Dropout, residual and normalisation: [n, H] -> [n, H]."""
        normed: Tensor = self.norm(states + self.dropout(change))
        return normed

    def forward(self, states: Tensor, tokens: Tokens, block: Tensor) -> Tensor:
        """states [T, H] after attention; `block` [T, H], what the layer was given, is for mixtures whose gate reads it."""
        return self.joined(states, self.change(states))


class Layer(nn.Module):
    """Attention, then feed-forward: [T, H] -> [T, H]."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention = Attention(shape)
        self.feedforward = FeedForward(shape)

    def forward(self, states: Tensor, tokens: Tokens, layout: Layout) -> Tensor:
        mixed: Tensor = self.feedforward(self.attention(states, layout), tokens, states)
        return mixed


class VocabularyHead(nn.Module):
    """The masked-language-model head up to its decoder, whose weights are the word embeddings: [T, H] -> [T, H], and a bias [V]."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.transform = nn.Linear(shape.hidden, shape.hidden)
        self.norm = nn.LayerNorm(shape.hidden, eps=shape.epsilon)
        self.bias = nn.Parameter(torch.zeros(shape.vocabulary))
        self.activation = ACTIVATIONS[shape.activation]

    def forward(self, states: Tensor) -> Tensor:
        normed: Tensor = self.norm(self.activation(self.transform(states)))
        return normed


class Encoder(nn.Module):
    """Embeddings, layers and, if asked for, a vocabulary head and a pooler. All tokens of a batch are packed."""

    def __init__(self, shape: Shape, *, vocabulary_head: bool = False, pooler: bool = False) -> None:
        super().__init__()
        self.shape = shape
        self.embeddings = Embeddings(shape)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.vocabulary_head = VocabularyHead(shape) if vocabulary_head else None
        self.pooler = nn.Linear(shape.hidden, shape.hidden) if pooler else None
        self.apply(self._start)

    def _start(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=self.shape.spread)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, tokens: Tokens) -> Tensor:
        """States [T, H] of the last layer; fastest if texts of one length are neighbours."""
        return run(self.layers, self.embeddings(tokens), tokens)

    def logits(self, states: Tensor) -> Tensor:
        """Vocabulary logits [T, V] in full; what learned sparse heads avoid."""
        assert self.vocabulary_head is not None
        return F.linear(self.vocabulary_head(states), self.embeddings.words.weight, self.vocabulary_head.bias)

    def pooled(self, states: Tensor, tokens: Tokens) -> Tensor:
        """BERT's pooler: tanh of a linear map of the first token, [B, H]."""
        assert self.pooler is not None
        return torch.tanh(self.pooler(states.index_select(0, tokens.starts[:-1])))

    def tower(self, start: int) -> nn.ModuleList:
        """An independent copy of the layers from `start` up."""
        return nn.ModuleList(copy.deepcopy(layer) for layer in list(self.layers)[start:])


def run(layers: nn.ModuleList, states: Tensor, tokens: Tokens) -> Tensor:
    """States [T, H] through a stack of layers."""
    layout = tokens.layout
    for layer in layers:
        states = layer(states, tokens, layout)
    return states
