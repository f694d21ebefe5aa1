"""Relevance score of a query-document pair: the sequence classification head of the encoder's family, or logits of a decoder's words."""

from torch import Tensor, nn

from moeir.backbones.config import ACTIVATIONS, EncoderConfig
from moeir.backbones.encoder import Encoder
from moeir.backbones.layers import init_weights
from moeir.backbones.packed_tokens import PackedTokens
from moeir.backbones.tokenizer import TextTokenizer
from moeir.errors import UsageError
from moeir.kernels.precision import full_precision
from moeir.representations.dense import Dense


class ClassificationHead(nn.Module):
    """The family's classification head on the pooled state (unless `linear`), then a linear map to one logit; always in float32."""

    kind = Dense.kind

    def __init__(self, encoder_config: EncoderConfig, *, linear: bool) -> None:
        super().__init__()
        hidden, prenorm = encoder_config.hidden, encoder_config.prenorm
        self.config = config = None if linear else encoder_config.classification_head
        self.dense, self.norm = None, None
        if config is not None and not config.pooler:
            self.dense = nn.Linear(hidden, hidden, bias=prenorm is None or prenorm.head_bias)
        if config is not None and config.norm:
            self.norm = nn.LayerNorm(hidden, eps=encoder_config.epsilon, bias=prenorm is None or prenorm.norm_bias)
        self.input_dropout = nn.Dropout(config.dropout if config is not None and config.dropout_first else 0.0)
        self.dropout = nn.Dropout(0.0 if config is None else config.dropout)
        self.output = nn.Linear(hidden, 1)
        init_weights(self, encoder_config.initializer_range)

    def forward(self, pooled: Tensor, tokens: PackedTokens, pooler: nn.Linear | None = None) -> Dense:
        """pooled [B, H] -> vectors [B, 1], the score of each pair. `pooler` is the encoder's, where it serves as the dense map (BERT)."""
        with full_precision(pooled.device):
            states = pooled.float()
            if self.config is not None:
                dense = pooler if self.dense is None else self.dense
                assert dense is not None
                states = ACTIVATIONS[self.config.activation](dense(self.input_dropout(states)))
                states = states if self.norm is None else self.norm(states)
            return Dense(self.output(self.dropout(states)))


class WordLogitHead(nn.Module):
    """The logit of the next word `words[0]`, less that of `words[1]` if there is one (Nogueira et al. 2020; Qwen3-Reranker, 2025).

    It has no parameters; `token_ids` are those of the words, which the tokenizer knows.
    """

    kind = Dense.kind

    def __init__(self, words: tuple[str, ...]) -> None:
        super().__init__()
        if not 1 <= len(words) <= 2 or len({*words}) < len(words):
            expected = "the word for a relevant document and, if it counts, that for another, as yes+no"
            raise UsageError(f"cross-encoder:words={'+'.join(words)}: expected {expected}")
        self.words, self.token_ids = words, tuple[int, ...]()

    def find_words(self, tokenizer: TextTokenizer) -> None:
        """UsageError for a word that is no single token."""
        if wrong := [word for word in self.words if tokenizer.find_word(word) is None]:
            raise UsageError(f"cross-encoder:words={'+'.join(self.words)}: {wrong[0]!r} is no single token of {tokenizer.folder}")
        self.token_ids = tuple(map(tokenizer.find_word, self.words))

    def forward(self, last: Tensor, encoder: Encoder) -> Dense:
        """last [B, H], the states of the last tokens -> vectors [B, 1], the score of each pair."""
        with full_precision(last.device):
            logits = encoder.vocabulary_head.word_logits(last.float(), encoder.vocabulary_words, self.token_ids)
            return Dense(logits[:, :1] - logits[:, 1:] if len(self.token_ids) == 2 else logits)


def binary_to_single_logit(weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Reduce a two-class output layer to one logit, second minus first, which ranks pairs as the probability of the second does.

    weight [2, H], bias [2] -> [1, H], [1].

    >>> import torch
    >>> binary_to_single_logit(torch.tensor([[1.0, 2.0], [4.0, 2.5]]), torch.tensor([0.5, 0.0]))
    (tensor([[3.0000, 0.5000]]), tensor([-0.5000]))
    """
    return weight[1:] - weight[:1], None if bias is None else bias.flatten()[1:] - bias.flatten()[:1]
