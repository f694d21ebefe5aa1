"""One weight per vocabulary term: log-saturated logits, maximum or sum over positions (SPLADE; CAME eq. 3)."""

import torch
from torch import Tensor, nn

from moeir.backbones.encoder import Encoder
from moeir.backbones.packed_tokens import PackedTokens
from moeir.errors import UsageError
from moeir.kernels.splade import find_max_positions, log_saturated_sum, selected_logits
from moeir.representations.sparse import Sparse

POOLINGS = ("max", "sum")


class LexicalHead(nn.Module):
    """weight(text, term) = log(1 + relu(logit)), pooled over positions. It uses the encoder's MLM head and has no parameters.

    `max` is SPLADE-max (Formal et al. 2021b) and CAME's; `sum` is the first SPLADE (Formal et al. 2021a, eq. 2).
    """

    kind = Sparse.kind

    def __init__(self, *, pooling: str = "max") -> None:
        super().__init__()
        if pooling not in POOLINGS:
            raise UsageError(f"lexical pooling={pooling}: expected {' or '.join(POOLINGS)}")
        self.pooling = pooling

    def forward(self, states: Tensor, tokens: PackedTokens, encoder: Encoder) -> Sparse:
        """states [T, H] -> sparse weights over V terms for B texts."""
        head, words = encoder.vocabulary_head, encoder.embeddings.words.weight
        assert head is not None
        transformed = head(states)
        if self.pooling == "sum":
            texts, terms, weights = log_saturated_sum(transformed, tokens.layout, words, head.bias)
        else:  # log(1 + x) is monotonic, so the maximum is taken first
            texts, terms, positions = find_max_positions(transformed, tokens.layout, words, head.bias)
            logits = selected_logits(transformed, words, head.bias, terms, positions)
            if logits.is_cuda:  # rounding can leave weights of 0; dropping them here would synchronise
                weights = torch.log1p(logits.relu())
            else:
                positive = (logits > 0).nonzero()[:, 0]
                texts, terms, weights = texts[positive], terms[positive], torch.log1p(logits[positive])
        return Sparse.from_pairs(texts, terms, weights, len(tokens), len(words))
