"""A weight for every vocabulary term: log-saturated, the strongest position of each term (SPLADE-max; CAME eq. 3)."""

import torch
from torch import Tensor, nn

from moeir.backbones.encoder import Encoder
from moeir.backbones.tokens import Tokens
from moeir.kernels.vocabulary import activations, winners
from moeir.representations.sparse import Sparse


class Lexical(nn.Module):
    """weight(text, term) = max over positions of log(1 + relu(logit)); no weights of its own: the encoder's head, tied to its words."""

    def forward(self, states: Tensor, tokens: Tokens, encoder: Encoder) -> Sparse:
        """states [T, H] -> sparse weights over V terms for B texts. Maximum first, then log(1 + x): the same, as both grow together."""
        head, words = encoder.vocabulary_head, encoder.embeddings.words.weight
        assert head is not None
        transformed = head(states)
        texts, terms, positions = winners(transformed, tokens.layout, words, head.bias)
        logits = activations(transformed, words, head.bias, terms, positions)
        kept = (logits > 0).nonzero()[:, 0]  # what was positive by rounding only is absent
        return Sparse.from_pairs(texts[kept], terms[kept], torch.log1p(logits[kept]), len(tokens), len(words))
