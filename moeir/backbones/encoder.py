"""Our own encoder of BERT and its kin: embeddings, layers, vocabulary head. The numbers are those of `transformers`, the batch packed."""

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from moeir.backbones.layers import FeedForward, Layer
from moeir.backbones.shape import ACTIVATIONS, PreNorm, Shape
from moeir.backbones.tokens import Tokens

__all__ = ["Embeddings", "Encoder", "FeedForward", "Layer", "PreNorm", "Shape", "VocabularyHead", "first_states", "run"]

class Embeddings(nn.Module):
    """Word, segment and position embeddings, as many as a family has of them, added, normalised and brought to the width of the states."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        prenorm, width = shape.prenorm, shape.width
        self.words = nn.Embedding(shape.vocabulary, width)
        self.places = nn.Embedding(shape.first_position + shape.positions, width) if prenorm is None else None
        self.kinds = nn.Embedding(shape.segments, width) if shape.segments else None
        self.norm = nn.LayerNorm(width, eps=shape.epsilon, bias=prenorm is None or prenorm.norm_bias)
        self.dropout = nn.Dropout(shape.dropout if prenorm is None else prenorm.embedding_dropout)
        self.project = None if shape.embedding is None else nn.Linear(width, shape.hidden)
        self.first_position = shape.first_position

    def forward(self, tokens: Tokens) -> Tensor:
        """[T, H]; segments that a family does not tell apart are one."""
        added: Tensor = self.words(tokens.ids)
        if self.kinds is not None:
            known = tokens.segments is not None and self.kinds.num_embeddings > 1
            added = added + self.kinds(tokens.segments if known else torch.zeros_like(tokens.ids))
        if self.places is not None:
            added = added + self.places(tokens.positions() + self.first_position)
        normed: Tensor = self.dropout(self.norm(added))
        return normed if self.project is None else self.project(normed)


class VocabularyHead(nn.Module):
    """The masked-language-model head up to its decoder, whose weights are the word embeddings: [T, H] -> [T, E], and a bias [V].

    E is the width of the word embeddings: H, but for ELECTRA's small models.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        prenorm = shape.prenorm
        self.transform = nn.Linear(shape.hidden, shape.width, bias=prenorm is None or prenorm.head_bias)
        self.norm = nn.LayerNorm(shape.width, eps=shape.epsilon, bias=prenorm is None or prenorm.norm_bias)
        self.bias = nn.Parameter(torch.zeros(shape.vocabulary))
        self.activation = ACTIVATIONS[shape.head_activation or shape.activation]

    def forward(self, states: Tensor) -> Tensor:
        normed: Tensor = self.norm(self.activation(self.transform(states)))
        return normed


class Encoder(nn.Module):
    """Embeddings, layers and, if asked for, a vocabulary head and a pooler. All tokens of a batch are packed."""

    def __init__(self, shape: Shape, *, vocabulary_head: bool = False, pooler: bool = False) -> None:
        super().__init__()
        self.shape = shape
        self.embeddings = Embeddings(shape)
        self.layers = nn.ModuleList(Layer(shape, number) for number in range(shape.layers))
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

    def firsts(self, tokens: Tokens) -> Tensor:
        """What `forward` gives for the first token of each text, [B, H], for less."""
        return first_states(self.layers, self.embeddings(tokens), tokens)

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


def first_states(layers: nn.ModuleList, states: Tensor, tokens: Tokens) -> Tensor:
    """States [T, H] through a stack of layers, of the last of which nobody needs but the first token of each text: [B, H]."""
    if not len(layers):
        return states.index_select(0, tokens.starts[:-1])
    return _computed(layers[-1], layers[-1].firsts, run(layers[:-1], states, tokens), tokens)


def run(layers: nn.ModuleList, states: Tensor, tokens: Tokens) -> Tensor:
    """States [T, H] through a stack of layers."""
    layout = tokens.layout
    for layer in layers:
        states = _computed(layer, layer, states, tokens, layout)
    return states


def _computed(layer: nn.Module, work: Callable[..., Tensor], *given: object) -> Tensor:
    """What a layer makes of states, computed again for its gradient if it is one of those."""
    if not (layer.recomputed and torch.is_grad_enabled()):
        return work(*given)
    made: Tensor = checkpoint(work, *given, context_fn=partial(_again, layer), use_reentrant=False, preserve_rng_state=True)
    return made


def _again(layer: nn.Module) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """What surrounds a layer's computation, and what surrounds the one for its gradient."""
    return nullcontext(), _Unsaid(layer)


class _Unsaid(AbstractContextManager[None]):
    """What the router of a layer says when the layer is computed again, which may happen more than once: it has said it before."""

    def __init__(self, layer: nn.Module) -> None:
        self._layer = layer

    def __exit__(self, *problem: object) -> None:
        self._layer.feedforward.routed = None
