"""Encoder of the BERT family on packed batches: embeddings, layers, vocabulary head. Its numbers equal those of `transformers`."""

import copy
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from moeir.backbones.config import ACTIVATIONS, EncoderConfig
from moeir.backbones.dispatch import choose_adapters
from moeir.backbones.families.name_map import NameMap
from moeir.backbones.layers import Layer, init_weights, pack_layers
from moeir.backbones.packed_tokens import PackedTokens
from moeir.kernels.fused_cross_entropy import reduce_logits
from moeir.kernels.int8_linear import Int8Words


class Embeddings(nn.Module):
    """Sum of word, segment and position embeddings (those that a family has), normalised and projected to the hidden size."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        prenorm, width = config.prenorm, config.embedding_size
        self.words = nn.Embedding(config.vocabulary, width)
        self.positions = nn.Embedding(config.first_position + config.positions, width) if config.has_position_embeddings else None
        self.token_types = nn.Embedding(config.segments, width) if config.segments else None
        self.norm = nn.LayerNorm(width, eps=config.epsilon, bias=prenorm is None or prenorm.norm_bias)
        self.dropout = nn.Dropout(config.dropout if prenorm is None else prenorm.embedding_dropout)
        self.project = None if config.factorized_embedding_size is None else nn.Linear(width, config.hidden)
        self.first_position = config.first_position

    def forward(self, tokens: PackedTokens) -> Tensor:
        """[T, H]; a family with a single segment type ignores segments."""
        embeddings: Tensor = self.words(tokens.ids)
        if self.token_types is not None:
            has_segments = tokens.segments is not None and self.token_types.num_embeddings > 1
            embeddings = embeddings + self.token_types(tokens.segments if has_segments else torch.zeros_like(tokens.ids))
        if self.positions is not None:
            embeddings = embeddings + self.positions(tokens.positions() + self.first_position)
        normalized: Tensor = self.dropout(self.norm(embeddings))
        return normalized if self.project is None else self.project(normalized)


class VocabularyHead(nn.Module):
    """Masked-language-model head without its decoder, which is tied to the word embeddings: [T, H] -> [T, E], and a bias [V].

    E is the embedding size: H, except in ELECTRA's small models.
    """

    compiled_methods = ("reduce_logits",)
    reduce_logits = staticmethod(reduce_logits)  # for the loss of masked words

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        prenorm = config.prenorm
        self.transform = nn.Linear(config.hidden, config.embedding_size, bias=prenorm is None or prenorm.head_bias)
        self.norm = nn.LayerNorm(config.embedding_size, eps=config.epsilon, bias=prenorm is None or prenorm.norm_bias)
        self.bias = nn.Parameter(torch.zeros(config.vocabulary))
        self.activation = ACTIVATIONS[config.head_activation or config.activation]

    def forward(self, states: Tensor) -> Tensor:
        normalized: Tensor = self.norm(self.activation(self.transform(states)))
        return normalized


class Encoder(nn.Module):
    """Embeddings, layers and, optionally, a vocabulary head; a cross-encoder adds a pooler. All tokens of a batch are packed."""

    file_names: Mapping[str, str] | None = None  # of weights by their names here, if transformers reads and writes them
    name_map: NameMap | None = None  # of one of our families: between names here and those of transformers
    is_causal = False  # whether tokens attend to earlier ones alone
    table_experts: Mapping[str, int] | None = None  # of tables with adapters: the expert of each side
    word_head: nn.Module | None = None  # that of a model of transformers, also where `vocabulary_head` cannot be it

    def __init__(self, config: EncoderConfig, *, vocabulary_head: bool = False) -> None:
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(Layer(config, number) for number in range(config.layers))
        self.vocabulary_head = VocabularyHead(config) if vocabulary_head else None
        self.pooler: nn.Linear | None = None
        self.product_words: Tensor | Int8Words | None = None  # of the form for inference: the word embeddings as factors of products
        init_weights(self, config.initializer_range)

    def forward(self, tokens: PackedTokens) -> Tensor:
        """States [T, H] of the last layer; fastest if texts of equal length are neighbours."""
        return run_layers(self.layers, self.embed(tokens), tokens)

    def embed(self, tokens: PackedTokens) -> Tensor:
        """States [T, H] before the layers."""
        expert = None if self.table_experts is None else self.table_experts[tokens.side]
        with nullcontext() if expert is None else choose_adapters((expert,), len(tokens.ids)):
            states: Tensor = self.embeddings(tokens)
        return states

    def logits(self, states: Tensor) -> Tensor:
        """Vocabulary logits [T, V] in full, which learned sparse heads avoid."""
        assert self.vocabulary_head is not None
        return F.linear(self.vocabulary_head(states), self.vocabulary_words, self.vocabulary_head.bias)

    @property
    def vocabulary_words(self) -> Tensor:
        """[V, E] the vocabulary head's decoder: the word embeddings."""
        return self.embeddings.words.weight

    def find_hf_name(self, name: str) -> str:
        """The name of a weight of ours in the model of transformers without head."""
        return name if self.name_map is None else self.name_map.to_hf(name, has_head=False)

    def check_layers(self, purpose: str) -> None:
        """UsageError if the encoder has no layers of its own, so that `purpose` is impossible; it always has here."""

    def copy_layers_from(self, start: int) -> nn.ModuleList:
        """An independent copy of the layers from `start` up."""
        return nn.ModuleList(copy.deepcopy(layer) for layer in list(self.layers)[start:])


def pack_encoders(model: nn.Module, dtype: torch.dtype) -> None:
    """Give every encoder of a model its form for inference on a CPU (`pack_layers`); a vocabulary head's words are cast once."""
    pack_layers(model, dtype)
    for module in model.modules():
        if isinstance(module, Encoder) and module.vocabulary_head is not None:
            words = module.vocabulary_words.detach()
            module.product_words = Int8Words(words) if dtype == torch.int8 else words.to(dtype)


def run_layers(layers: nn.ModuleList, states: Tensor, tokens: PackedTokens) -> Tensor:
    """Run states [T, H] through a stack of layers."""
    layout = tokens.layout
    for layer in layers:
        if layer.gradient_checkpointing and torch.is_grad_enabled():
            contexts = (nullcontext(), _DiscardRouting(layer))
            states = checkpoint(layer, states, tokens, layout, context_fn=lambda contexts=contexts: contexts, use_reentrant=False)
        else:
            states = layer(states, tokens, layout)
    return states


class _DiscardRouting(AbstractContextManager[None]):
    """Discards the routing that a layer records when it is recomputed, possibly more than once: the forward pass has recorded it."""

    def __init__(self, layer: nn.Module) -> None:
        self._layer = layer

    def __exit__(self, *exception: object) -> None:
        for module in (self._layer.feedforward, self._layer.router):
            if module is not None:
                module.last_routing = None
