"""One weight per vocabulary term: log-saturated logits, maximum over positions, special tokens' among them (SPLADE; CAME eq. 3),
or for queries a weight of each of their own tokens, without an encoder; or for the tokens of a text a weight each (BGE-M3).
"""

import torch
from torch import Tensor, nn

from moeir.backbones.encoder import Encoder
from moeir.backbones.layers import make_projection
from moeir.backbones.packed_tokens import PackedTokens, SpecialTokens
from moeir.kernels.splade import find_max_positions, selected_logits
from moeir.parsing import check_choice
from moeir.representations.sparse import Sparse

ACTIVATIONS = ("relu", "log1p_relu")
QUERIES = ("encoder", "tokens")
WEIGHT_UNIT = 100.0  # of a query token's weight per unit of its parameter: a rate for encoders, 5e-5, moves a weight by .005 a step


def has_fixed_bias(encoder: Encoder) -> bool:
    """Whether the logits of an encoder's vocabulary head have no bias that is learned, as those of decoders."""
    return encoder.vocabulary_head is not None and "bias" not in dict(encoder.vocabulary_head.named_parameters(recurse=False))


class LexicalHead(nn.Module):
    """weight(text, term) = log(1 + relu(logit)), the maximum over positions, as SPLADE-max (Formal et al. 2021b) and CAME have it.

    It uses the encoder's MLM head and has no parameters of its own. `log1p_relu` takes the logarithm twice (Shen et al. 2025). With
    `queries=tokens` the weights of a query are those of its tokens, each learned once for the vocabulary, and no encoder reads it:
    SPLADE-doc (Formal et al. 2021b) has 1 for all of them, Nardini et al. (2025) learn them. `has_bias`: a bias of the logits in place of
    the MLM head's, for decoders, whose logits have none: which of them are above zero says nothing before it is fitted.
    """

    kind = Sparse.kind

    def __init__(
        self,
        *,
        activation: str = "relu",
        queries: str = "encoder",
        vocabulary: int = 0,
        special_tokens: SpecialTokens | None = None,
        has_bias: bool = False,
    ) -> None:
        super().__init__()
        check_choice("lexical queries", queries, QUERIES)
        check_choice("lexical activation", activation, ACTIVATIONS)
        self.activation = activation
        self.bias = nn.Parameter(torch.zeros(vocabulary)) if has_bias else None
        self.query_weights: nn.Parameter | None = None
        if queries == "tokens":
            assert special_tokens is not None
            self.query_weights = nn.Parameter(torch.full((vocabulary,), 1.0 / WEIGHT_UNIT))
            special_ids = [getattr(special_tokens, name) for name in ("beginning", "separator", "mask", "query_marker")]
            self.register_buffer("special_ids", torch.tensor([one for one in special_ids if one is not None]), persistent=False)

    def set_query_weights(self, weights: Tensor) -> None:
        """Let the weight of each token in a query be `weights` [V]."""
        assert self.query_weights is not None
        with torch.no_grad():
            self.query_weights.copy_(weights / WEIGHT_UNIT)

    def weigh_tokens(self, tokens: PackedTokens) -> Sparse:
        """The weights of the tokens of each query, each token once; differentiable."""
        assert self.query_weights is not None
        vocabulary = len(self.query_weights)
        ordinary = (~torch.isin(tokens.ids, self.special_ids)).nonzero()[:, 0]
        pairs = torch.unique(tokens.text_indices().index_select(0, ordinary) * vocabulary + tokens.ids.index_select(0, ordinary))
        terms = pairs % vocabulary
        weights = self.query_weights.float().index_select(0, terms) * WEIGHT_UNIT
        return Sparse.from_pairs(pairs // vocabulary, terms, weights, len(tokens), vocabulary).drop_zero_weights()

    def forward(self, states: Tensor | None, tokens: PackedTokens, encoder: Encoder) -> Sparse:
        """states [T, H] -> sparse weights over V terms for B texts; states are None for a side that is not read."""
        if states is None:
            return self.weigh_tokens(tokens)
        head, words = encoder.vocabulary_head, encoder.vocabulary_words
        assert head is not None
        transformed, bias = head(states), head.bias if self.bias is None else self.bias
        product_words = words if encoder.product_words is None else encoder.product_words
        texts, terms, positions = find_max_positions(transformed, tokens.layout, product_words, bias)  # log(1 + x) is monotonic
        weights = torch.log1p(selected_logits(transformed, words, bias, terms, positions).relu())
        weights = torch.log1p(weights) if self.activation == "log1p_relu" else weights
        encoded = Sparse.from_pairs(texts, terms, weights, len(tokens), len(words))
        return encoded if weights.is_cuda else encoded.drop_zero_weights()  # by rounding; on CUDA later, as it synchronises


class TokenWeightHead(nn.Module):
    """weight(text, term) = relu of a linear map with bias, maximum over the positions of the term; 0 for terms that the text does not have.

    Special tokens and unknown ones have no weight (BGE-M3, Chen et al. 2024, §3.1).
    """

    kind = Sparse.kind

    def __init__(self, hidden: int, special_tokens: SpecialTokens) -> None:
        super().__init__()
        self.projection = make_projection(hidden, 1, "lexical")
        special_ids = (special_tokens.beginning, special_tokens.separator, special_tokens.unknown)
        self.register_buffer("special_ids", torch.tensor([one for one in special_ids if one is not None]), persistent=False)

    def forward(self, states: Tensor, tokens: PackedTokens, encoder: Encoder) -> Sparse:
        """states [T, H] -> sparse weights over V terms for B texts."""
        vocabulary = encoder.config.vocabulary
        rows = (~torch.isin(tokens.ids, self.special_ids)).nonzero()[:, 0]
        token_weights = self.projection(states.index_select(0, rows)).float()[:, 0].relu()
        keys = tokens.text_indices().index_select(0, rows) * vocabulary + tokens.ids.index_select(0, rows)
        pairs, pair_of_token = torch.unique(keys, return_inverse=True)
        weights = token_weights.new_zeros(len(pairs)).scatter_reduce(0, pair_of_token, token_weights, "amax")
        return Sparse.from_pairs(pairs // vocabulary, pairs % vocabulary, weights, len(tokens), vocabulary).drop_zero_weights()
