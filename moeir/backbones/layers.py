"""The layers of an encoder: attention, then feed-forward, normalised after each (BERT's family) or before each (ModernBERT)."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from moeir.backbones.shape import ACTIVATIONS, PreNorm, Shape
from moeir.backbones.tokens import Tokens
from moeir.kernels.attention import Layout, apply_rotary, attention, first_attention


class Attention(nn.Module):
    """Multi-head self-attention, its residual and normalisation."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.query, self.key, self.value, self.output = (nn.Linear(shape.hidden, shape.hidden) for _ in range(4))
        self.norm = nn.LayerNorm(shape.hidden, eps=shape.epsilon)
        self.dropout, self.attention_dropout = nn.Dropout(shape.dropout), shape.attention_dropout
        self.heads = shape.heads

    def forward(self, states: Tensor, layout: Layout) -> Tensor:
        """states [T, H] -> [T, H]."""
        query, key, value = self._project(states, self.query, self.key, self.value)
        return self._add_and_norm(states, attention(query, key, value, layout, dropout=self._dropout_rate))

    def forward_cls(self, states: Tensor, layout: Layout) -> Tensor:
        """What `forward` gives for the first token of each text: [T, H] -> [B, H]."""
        first_states = states.index_select(0, layout.starts[:-1])
        (query,), (key, value) = self._project(first_states, self.query), self._project(states, self.key, self.value)
        return self._add_and_norm(first_states, first_attention(query, key, value, layout, self._dropout_rate))

    def _project(self, states: Tensor, *maps: nn.Linear) -> tuple[Tensor, ...]:
        """The heads [n, heads, width] of each map, by one product."""
        weight, bias = torch.cat([part.weight for part in maps]), torch.cat([part.bias for part in maps])
        return F.linear(states, weight, bias).unflatten(-1, (len(maps), self.heads, -1)).unbind(1)

    @property
    def _dropout_rate(self) -> float:
        return self.attention_dropout if self.training else 0.0

    def _add_and_norm(self, states: Tensor, mixed: Tensor) -> Tensor:
        added: Tensor = self.norm(states + self.dropout(self.output(mixed.flatten(-2))))
        return added


class RotaryAttention(nn.Module):
    """Normalisation, multi-head self-attention with rotary positions, residual; over all tokens of a text or a window of them.

    The first layer reads what the embeddings have normalised and normalises nothing.
    """

    def __init__(self, shape: Shape, prenorm: PreNorm, number: int) -> None:
        super().__init__()
        hidden, bias = shape.hidden, prenorm.attention_bias
        self.norm = nn.LayerNorm(hidden, eps=shape.epsilon, bias=prenorm.norm_bias) if number else nn.Identity()
        self.joint = nn.Linear(hidden, 3 * hidden, bias=bias)  # query, key and value
        self.output = nn.Linear(hidden, hidden, bias=bias)
        self.dropout, self.attention_dropout = nn.Dropout(shape.attention_dropout), shape.attention_dropout
        self.heads = shape.heads
        self.window, self.theta = prenorm.windows[number], prenorm.thetas[number]

    def forward(self, states: Tensor, layout: Layout) -> Tensor:
        """states [T, H] -> [T, H]."""
        query, key, value = self.joint(self.norm(states)).unflatten(-1, (3, self.heads, -1)).unbind(-3)
        angles = layout.rotary_angles(self.theta, query.shape[-1])
        query, key = apply_rotary(query, *angles), apply_rotary(key, *angles)
        mixed = attention(query, key, value, layout, self.window, self.attention_dropout if self.training else 0.0)
        added: Tensor = states + self.dropout(self.output(mixed.flatten(-2)))
        return added


class FeedForward(nn.Module):
    """Two linear maps around an activation, with residual and normalisation: what a mixture of experts replaces."""

    routed: object = None  # what a router in its place has said

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

    def transform(self, states: Tensor) -> Tensor:
        """All of it: [n, H] -> [n, H]."""
        return self.joined(states, self.change(states))

    def forward(self, states: Tensor, tokens: Tokens, block: Tensor) -> Tensor:
        """states [T, H] after attention; `block` [T, H], what the layer was given, is for mixtures whose gate reads it."""
        return self.transform(states)


class GatedFeedForward(FeedForward):
    """One half of the upper map, activated, times its other half; normalised before, only added after (Shazeer 2020, GEGLU)."""

    def __init__(self, shape: Shape, prenorm: PreNorm) -> None:
        nn.Module.__init__(self)
        self.norm = nn.LayerNorm(shape.hidden, eps=shape.epsilon, bias=prenorm.norm_bias)
        self.up = nn.Linear(shape.hidden, 2 * shape.inner, bias=prenorm.feedforward_bias)
        self.down = nn.Linear(shape.inner, shape.hidden, bias=prenorm.feedforward_bias)
        self.dropout = nn.Dropout(shape.dropout)
        self.activation = ACTIVATIONS[shape.activation]

    def change(self, states: Tensor) -> Tensor:
        """What is added to the states: [n, H] -> [n, H]."""
        opened, gate = self.up(self.norm(states)).chunk(2, dim=-1)
        added: Tensor = self.down(self.dropout(self.activation(opened) * gate))
        return added

    def joined(self, states: Tensor, change: Tensor) -> Tensor:
        """The residual alone: [n, H] -> [n, H]."""
        return states + change


class Layer(nn.Module):
    """Attention, then feed-forward: [T, H] -> [T, H]. `number` is its place in the encoder, from 0.

    Where layers normalise before, the last one also holds the encoder's `closing` normalisation: every tower that ends with a copy of
    it ends normalised.
    """

    recomputed = False  # whether it keeps its input only, and is computed again for its gradient

    def __init__(self, shape: Shape, number: int = 0) -> None:
        super().__init__()
        prenorm = shape.prenorm
        self.attention: nn.Module = Attention(shape) if prenorm is None else RotaryAttention(shape, prenorm, number)
        self.feedforward: nn.Module = FeedForward(shape) if prenorm is None else GatedFeedForward(shape, prenorm)
        closes = prenorm is not None and number == shape.layers - 1
        self.closing = nn.LayerNorm(shape.hidden, eps=shape.epsilon, bias=prenorm.norm_bias) if prenorm is not None and closes else None

    def forward(self, states: Tensor, tokens: Tokens, layout: Layout) -> Tensor:
        mixed: Tensor = self.feedforward(self.attention(states, layout), tokens, states)
        return mixed if self.closing is None else self.closing(mixed)

    @property
    def plain(self) -> bool:
        """Whether it can work out the first token of each text alone: nothing is routed, nothing normalised before."""
        return isinstance(self.attention, Attention) and type(self.feedforward) is FeedForward

    def firsts(self, states: Tensor, tokens: Tokens) -> Tensor:
        """What `forward` gives for the first token of each text: [T, H] -> [B, H]; a plain layer works out nothing else."""
        layout = tokens.layout
        if not self.plain:
            return self(states, tokens, layout).index_select(0, tokens.starts[:-1])
        attended = self.attention.forward_cls(states, layout)
        return self.feedforward.transform(attended)


def set_attention_dropout(model: nn.Module, rate: float) -> None:
    """Drop attention weights with this probability in every layer of a model, whatever its configuration says."""
    for module in model.modules():
        if "attention_dropout" in vars(module):
            module.attention_dropout = rate


def compile_layers(model: nn.Module, **options: Any) -> None:
    """Have torch compile what a layer does before and after attention; `options` are those of `torch.compile`.

    Attention itself is one kernel already. Shapes are dynamic: a batch's number of tokens is another at every step.
    """
    compiled = {Attention: ("_project", "_add_and_norm"), FeedForward: ("transform",), GatedFeedForward: ("transform",)}
    for module in model.modules():
        for name in compiled.get(type(module), ()):
            setattr(module, name, torch.compile(getattr(module, name), dynamic=True, **options))
