"""RetroMAE: a lightly masked span is encoded and reconstructed from its vector by an enhanced decoder (Xiao et al. 2022)."""

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from moeir.architectures.base import Architecture, StepMetrics
from moeir.backbones.config import EncoderConfig
from moeir.backbones.encoder import Encoder
from moeir.backbones.layers import FeedForward, init_weights
from moeir.backbones.packed_tokens import SpecialTokens
from moeir.errors import UsageError
from moeir.kernels.attention import VisibilityMask, find_visible_keys, masked_attention
from moeir.kernels.splitmix import splitmix64
from moeir.pretraining.base import Pretraining, TokenLoss, align_by_length, special_token_mask, vocabulary_loss
from moeir.pretraining.batches import MaskedTexts, PretrainingBatch
from moeir.pretraining.decoder import insert_vectors

KEY_STRIDE = -7046029254386353131  # 2^64 / golden ratio, as a signed number


class Retromae(Pretraining):
    """Asymmetric masking: the encoder sees most of a span, a one-layer decoder predicts every token from the vector and few others.

    loss = `mlm_weight` · MLM at `rate` + mean cross-entropy of every token but the special ones, each predicted from the vector, its
    position and a sample of the other tokens in which each is missing with probability `decoder_rate` (Xiao et al. 2022, enhanced
    decoding). The samples follow from the text and its masks, so batches need no second masks.
    """

    def __init__(self, architecture: Architecture, *, rate: float = 0.30, decoder_rate: float = 0.5, mlm_weight: float = 1.0) -> None:
        super().__init__(architecture, rate=rate, mlm_weight=mlm_weight)
        if not 0 <= decoder_rate < 1:
            raise UsageError(f"decoder_rate={decoder_rate}: expected 0 or more and less than 1, the share of masked tokens")
        self.decoder = EnhancedDecoder(architecture.encoder.config, rate=decoder_rate)

    def forward(self, batch: PretrainingBatch) -> tuple[Tensor, StepMetrics]:
        """Parts `mlm` and `decoder`."""
        encoded = self.encode(batch.anchors)
        special_tokens = self.architecture.special_tokens
        decode = partial(self.decoder, texts=batch.anchors, encoder=encoded.encoder, special_tokens=special_tokens)
        decoder_loss = self.decoder_loss(encoded.vectors, decode)
        return self.combine_losses(self.mlm_losses({"mlm": encoded}) | {"decoder": decoder_loss}, self.weights)


class EnhancedDecoder(nn.Module):
    """One layer whose queries are vector + position and whose keys and values are [vector; embeddings] (Xiao et al. 2022).

    Token i attends to position 0, which holds the vector, and to each other token but itself with probability 1 - `rate`, sampled
    separately for every i. Position 0, from which nothing is predicted, also attends to itself, as a short text may leave it no other.
    Post-norm as in BERT, whatever the encoder's family; position embeddings are the encoder's, or the decoder's own if the encoder has
    none as wide as its states (ModernBERT, small ELECTRA).
    """

    def __init__(self, config: EncoderConfig, *, rate: float = 0.5) -> None:
        super().__init__()
        hidden, self.rate, self.heads = config.hidden, rate, config.heads
        self.query, self.key, self.value, self.output = (nn.Linear(hidden, hidden) for _ in range(4))
        self.norm = nn.LayerNorm(hidden, eps=config.epsilon)
        self.dropout, self.attention_dropout = nn.Dropout(config.dropout), config.attention_dropout
        self.feedforward = FeedForward(config)
        needs_positions = config.prenorm is not None or config.embedding_size != hidden
        self.position_embeddings = nn.Embedding(config.positions, hidden) if needs_positions else None
        init_weights(self, config.initializer_range)

    def decode_states(self, vectors: Tensor, texts: MaskedTexts, encoder: Encoder) -> Tensor:
        """vectors [B, H] -> states [T, H]."""
        tokens = replace(texts.tokens, ids=texts.original_ids)
        if self.position_embeddings is not None:
            positions = self.position_embeddings(tokens.positions())
        else:
            assert encoder.embeddings.places is not None
            positions = encoder.embeddings.places(tokens.positions() + encoder.embeddings.first_position)
        query_states = vectors.index_select(0, tokens.text_indices()) + positions  # [T, H]
        key_states = insert_vectors(vectors, encoder.embeddings(tokens), tokens)
        parts = (self.query(query_states), self.key(key_states), self.value(key_states))
        query, key, value = (part.unflatten(-1, (self.heads, -1)) for part in parts)
        visibility = random_visibility(mask_keys(texts), self.rate)
        attention = masked_attention(query, key, value, tokens.layout, visibility, self.attention_dropout if self.training else 0.0)
        attended = self.norm(query_states + self.dropout(self.output(attention.flatten(-2))))
        output: Tensor = self.feedforward(attended, tokens, query_states)
        return output

    def forward(self, vectors: Tensor, texts: MaskedTexts, encoder: Encoder, special_tokens: SpecialTokens) -> TokenLoss:
        """Mean cross-entropy of every token but the special ones."""
        vectors, texts = align_by_length(vectors, texts)
        rows, _ = find_visible_keys(special_token_mask(texts, special_tokens), texts.tokens.starts)
        return vocabulary_loss(self.decode_states(vectors, texts, encoder).index_select(0, rows), texts.original_ids[rows], encoder)


def mask_keys(texts: MaskedTexts) -> Tensor:
    """[B] a random key per text, from its tokens and their masks: different in each epoch, the same in any batch."""
    tokens = texts.tokens
    signature = (2 * texts.original_ids).index_add_(0, texts.masked_positions, torch.ones_like(texts.masked_positions))
    token_hashes = splitmix64(signature + KEY_STRIDE * (tokens.positions() + 1))
    return token_hashes.new_zeros(len(tokens)).index_add_(0, tokens.text_indices(), token_hashes)


def random_visibility(keys: Tensor, rate: float) -> VisibilityMask:
    """Attention mask: position 0 is always visible, others with probability 1 - `rate`, by the text's key [B] and both positions."""

    def visible(texts: Tensor, length: int) -> Tensor:
        positions = torch.arange(length, device=texts.device)
        pairs = (positions[:, None] << 20) + positions + 1
        random_values = splitmix64(keys[texts, None, None] + KEY_STRIDE * pairs) & 0x7FFFFFFF  # [n, L, L]
        return ((random_values >= int(rate * 0x80000000)) & (positions[:, None] != positions)) | (positions == 0)

    return visible
