"""Weak decoders that reconstruct a text from one vector, so that the encoder must store the text's content in it.

Word embeddings, positions and vocabulary head are the encoder's and get gradients from the decoder too; the encoder's layers get them
through the vector alone.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from moeir.backbones.config import ACTIVATIONS, EncoderConfig
from moeir.backbones.encoder import Encoder, run_layers
from moeir.backbones.layers import Layer, init_weights
from moeir.backbones.packed_tokens import PackedTokens
from moeir.errors import UsageError
from moeir.kernels.attention import PackedLayout, apply_rotary, attention
from moeir.pretraining.base import TokenLoss, align_by_length, check_minimum, vocabulary_loss
from moeir.pretraining.batches import MaskedTexts


def insert_vectors(vectors: Tensor, states: Tensor, tokens: PackedTokens) -> Tensor:
    """States [T, H] with each text's first token replaced by its vector [B, H]."""
    return states.index_copy(0, tokens.starts[:-1], vectors.to(states.dtype))


class BidirectionalDecoder(nn.Module):
    """A few layers of the encoder's kind over [vector; states of the other tokens], with attention over the whole text.

    CoT-MAE's decoder (Wu et al. 2023) and Condenser's head (Gao and Callan 2021). For pre-norm encoders with local attention windows
    (ModernBERT), the layers are pre-norm with global attention and a final norm.
    """

    def __init__(self, config: EncoderConfig, *, layers: int) -> None:
        super().__init__()
        check_minimum("layers", layers, 1)
        prenorm = config.prenorm
        if prenorm is not None:
            full_thetas = [theta for window, theta in zip(prenorm.windows, prenorm.thetas, strict=True) if window is None]
            thetas = (full_thetas or prenorm.thetas)[:1] * (layers + 1)
            prenorm = replace(prenorm, windows=(None,) * (layers + 1), thetas=tuple(thetas))
        # the first layer of an encoder has no attention norm, others may have experts
        layer_config = replace(config, layers=layers + 1, prenorm=prenorm, experts=None)
        self.layers = nn.ModuleList(Layer(layer_config, number) for number in range(1, layers + 1))
        init_weights(self, config.initializer_range)

    def forward(self, vectors: Tensor, states: Tensor, tokens: PackedTokens) -> Tensor:
        """vectors [B, H], states [T, H] -> [T, H]."""
        return run_layers(self.layers, insert_vectors(vectors, states, tokens), tokens)


class CausalBlock(nn.Module):
    """One pre-norm block of GPT-2 (Radford et al. 2019): attention, then a feed-forward of width 4 H."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        hidden = config.hidden
        self.before_attention, self.before_feedforward = (nn.LayerNorm(hidden, eps=config.epsilon) for _ in range(2))
        self.qkv, self.output = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)  # query, key and value; output
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)
        self.dropouts = nn.ModuleList(nn.Dropout(config.dropout) for _ in range(2))
        self.attention_dropout, self.heads = config.attention_dropout, config.heads
        self.activation = ACTIVATIONS[config.activation]
        self.theta = config.theta if config.prenorm is None else config.prenorm.thetas[-1]  # rotary positions if the embeddings have none

    def forward(self, states: Tensor, layout: PackedLayout, window: int) -> Tensor:
        """states [T, H] -> [T, H]."""
        query, key, value = self.qkv(self.before_attention(states)).unflatten(-1, (3, self.heads, -1)).unbind(-3)
        if self.theta is not None:
            angles = layout.rotary_angles(self.theta, query.shape[-1])
            query, key = apply_rotary(query, *angles), apply_rotary(key, *angles)
        reach, dropout = (None if window < 0 else window - 1, 0), self.attention_dropout if self.training else 0.0
        attended = attention(query, key, value, layout, reach, dropout, keeps_first=True)
        states = states + self.dropouts[0](self.output(attended.flatten(-2)))
        output: Tensor = states + self.dropouts[1](self.down(self.activation(self.up(self.before_feedforward(states)))))
        return output


class CausalDecoder(nn.Module):
    """Predicts a text token by token from one vector and the last `window` tokens (CoT-MAE-qc, CoT-MoTE §3.2).

    The input is the encoder's embeddings of the unmasked text with the vector as first token, then dropout; position t predicts token
    t + 1, the separator included. Weights are initialised from N(0, initializer_range), those of output projections with 1 / √(2 layers)
    of that. The activation, heads and dropout are the encoder's. `window=-1`: all tokens before.
    """

    def __init__(self, config: EncoderConfig, *, layers: int = 1, window: int = 3) -> None:
        super().__init__()
        check_minimum("layers", layers, 1)
        if window != -1 and window < 1:
            raise UsageError(f"window={window}: expected 1 or more tokens, or -1 for all previous ones")
        blocks = [CausalBlock(config) for _ in range(layers)]
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(config.hidden, eps=config.epsilon)
        self.dropout = nn.Dropout(config.dropout)
        self.window = window
        init_weights(self, config.initializer_range)
        for block in blocks:
            for projection in (block.output, block.down):
                nn.init.normal_(projection.weight, std=config.initializer_range / math.sqrt(2 * layers))

    def decode_states(self, vectors: Tensor, texts: MaskedTexts, encoder: Encoder) -> Tensor:
        """vectors [B, H] -> states [T, H], normalised; those of position t predict token t + 1."""
        tokens = replace(texts.tokens, ids=texts.original_ids)
        states = self.dropout(insert_vectors(vectors, encoder.embeddings(tokens), tokens))
        for block in self.blocks:
            states = block(states, tokens.layout, self.window)
        normed: Tensor = self.norm(states)
        return normed

    def forward(self, vectors: Tensor, texts: MaskedTexts, encoder: Encoder) -> TokenLoss:
        """Mean cross-entropy of every token but the first of each text, predicted from the tokens it may attend to."""
        vectors, texts = align_by_length(vectors, texts)
        owners = torch.arange(len(texts), device=texts.original_ids.device)  # a row for every token but the last of a text
        shift = torch.repeat_interleave(owners, texts.tokens.starts.diff() - 1, output_size=len(texts.original_ids) - len(texts))
        rows = torch.arange(len(shift), device=shift.device) + shift
        return vocabulary_loss(self.decode_states(vectors, texts, encoder).index_select(0, rows), texts.original_ids[rows + 1], encoder)
