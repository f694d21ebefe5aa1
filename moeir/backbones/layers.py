"""The layers of an encoder: attention, then feed-forward, normalised after each (BERT's family) or before each (ModernBERT)."""

from torch import Tensor, nn

from moeir.backbones.shape import ACTIVATIONS, PreNorm, Shape
from moeir.backbones.tokens import Tokens
from moeir.kernels.attention import Layout, attention, first_attention, rotated
from moeir.kernels.noise import Dropout


class Attention(nn.Module):
    """Multi-head self-attention, its residual and normalisation."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.query, self.key, self.value, self.output = (nn.Linear(shape.hidden, shape.hidden) for _ in range(4))
        self.norm = nn.LayerNorm(shape.hidden, eps=shape.epsilon)
        self.dropout, self.forget = Dropout(shape.dropout), Dropout(shape.attention_dropout)
        self.heads = shape.heads

    def forward(self, states: Tensor, layout: Layout) -> Tensor:
        query, key, value = (part(states).unflatten(-1, (self.heads, -1)) for part in (self.query, self.key, self.value))
        noise = layout.noise() if self.training else None
        return self._joined(states, attention(query, key, value, layout, forgetting=self.forget.forgetting(noise)), noise)

    def firsts(self, states: Tensor, layout: Layout) -> Tensor:
        """What `forward` gives for the first token of each text: [T, H] -> [B, H]."""
        looking = states.index_select(0, layout.starts[:-1])
        pairs = ((self.query, looking), (self.key, states), (self.value, states))
        query, key, value = (part(read).unflatten(-1, (self.heads, -1)) for part, read in pairs)
        noise = layout.noise().index_select(0, layout.starts[:-1]) if self.training else None
        return self._joined(looking, first_attention(query, key, value, layout, self.forget.forgetting(noise)), noise)

    def _joined(self, states: Tensor, mixed: Tensor, noise: Tensor | None) -> Tensor:
        added: Tensor = self.norm(states + self.dropout(self.output(mixed.flatten(-2)), noise))
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
        self.dropout, self.forget = Dropout(shape.attention_dropout), Dropout(shape.attention_dropout)
        self.heads = shape.heads
        self.window, self.theta = prenorm.windows[number], prenorm.thetas[number]

    def forward(self, states: Tensor, layout: Layout) -> Tensor:
        query, key, value = self.joint(self.norm(states)).unflatten(-1, (3, self.heads, -1)).unbind(-3)
        turns = layout.turns(self.theta, query.shape[-1])
        query, key = rotated(query, *turns), rotated(key, *turns)
        noise = layout.noise() if self.training else None
        mixed = attention(query, key, value, layout, self.window, self.forget.forgetting(noise))
        added: Tensor = states + self.dropout(self.output(mixed.flatten(-2)), noise)
        return added


class FeedForward(nn.Module):
    """Two linear maps around an activation, with residual and normalisation: what a mixture of experts replaces."""

    routed: object = None  # what a router in its place has said

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.up = nn.Linear(shape.hidden, shape.inner)
        self.down = nn.Linear(shape.inner, shape.hidden)
        self.norm = nn.LayerNorm(shape.hidden, eps=shape.epsilon)
        self.dropout = Dropout(shape.dropout)
        self.activation = ACTIVATIONS[shape.activation]

    def change(self, states: Tensor, noise: Tensor | None) -> Tensor:
        """What is added to the states, before dropout: [n, H] -> [n, H]. `noise` [n] are the numbers that dropout comes from, if any."""
        added: Tensor = self.down(self.activation(self.up(states)))
        return added

    def joined(self, states: Tensor, change: Tensor, noise: Tensor | None) -> Tensor:
        """Dropout, residual and normalisation: [n, H] -> [n, H]."""
        normed: Tensor = self.norm(states + self.dropout(change, noise))
        return normed

    def forward(self, states: Tensor, tokens: Tokens, block: Tensor) -> Tensor:
        """states [T, H] after attention; `block` [T, H], what the layer was given, is for mixtures whose gate reads it."""
        noise = tokens.layout.noise() if self.training else None
        return self.joined(states, self.change(states, noise), noise)


class GatedFeedForward(FeedForward):
    """One half of the upper map, activated, times its other half; normalised before, only added after (Shazeer 2020, GEGLU)."""

    def __init__(self, shape: Shape, prenorm: PreNorm) -> None:
        nn.Module.__init__(self)
        self.norm = nn.LayerNorm(shape.hidden, eps=shape.epsilon, bias=prenorm.norm_bias)
        self.up = nn.Linear(shape.hidden, 2 * shape.inner, bias=prenorm.feedforward_bias)
        self.down = nn.Linear(shape.inner, shape.hidden, bias=prenorm.feedforward_bias)
        self.dropout = Dropout(shape.dropout)
        self.activation = ACTIVATIONS[shape.activation]

    def change(self, states: Tensor, noise: Tensor | None) -> Tensor:
        """What is added to the states: [n, H] -> [n, H]."""
        opened, gate = self.up(self.norm(states)).chunk(2, dim=-1)
        added: Tensor = self.down(self.dropout(self.activation(opened) * gate, noise))
        return added

    def joined(self, states: Tensor, change: Tensor, noise: Tensor | None) -> Tensor:
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
        attended = self.attention.firsts(states, layout)
        noise = layout.noise().index_select(0, tokens.starts[:-1]) if self.training else None
        return self.feedforward.joined(attended, self.feedforward.change(attended, noise), noise)
