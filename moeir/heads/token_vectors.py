"""One vector per token, for late interaction (ColBERT; CAME eq. 5), or for late interaction between tokens of the same term only (COIL,
Gao et al. 2021).
"""

import torch
from torch import Tensor, nn

from moeir.backbones.layers import make_projection
from moeir.backbones.packed_tokens import PackedTokens, SpecialTokens
from moeir.kernels.attention import find_visible_keys
from moeir.kernels.precision import normalize
from moeir.representations.exact_match import ExactMatch
from moeir.representations.multivector import MultiVector


class TokenVectorHead(nn.Module):
    """A linear map, the same for queries and documents, without bias unless it is set.

    `normalise` makes unit vectors; `punctuation` keeps the punctuation of documents; `first_token` keeps [CLS].
    `mean` divides the vectors of a query by their number, so that its score is a mean over its tokens and not their sum.
    """

    kind = MultiVector.kind

    def __init__(
        self,
        hidden: int,
        special_tokens: SpecialTokens,
        *,
        dimension: int = 128,
        normalise: bool = False,
        punctuation: bool = True,
        first_token: bool = True,
        bias: bool = False,
        mean: bool = False,
    ) -> None:
        super().__init__()
        self.projection = make_projection(hidden, dimension, "local", bias=bias)
        self.normalise, self.first_token, self.mean = normalise, first_token, mean
        dropped_ids = torch.tensor([] if punctuation else special_tokens.punctuation, dtype=torch.int64)
        self.register_buffer("dropped_ids", dropped_ids, persistent=False)

    def forward(self, states: Tensor, tokens: PackedTokens) -> MultiVector:
        """states [T, H] -> vectors [T', D] in float32."""
        vectors = self.projection(states).float()
        vectors = normalize(vectors) if self.normalise else vectors
        if self.mean and tokens.side == "query":
            counts = torch.zeros_like(tokens.starts[:-1]).index_add(0, tokens.text_indices(), self.token_mask(tokens).long())
            vectors = vectors / counts.index_select(0, tokens.text_indices())[:, None]
        if self.first_token and (not len(self.dropped_ids) or tokens.side == "query"):
            return MultiVector(vectors, tokens.starts, tokens.layout.max_length)
        rows, starts = find_visible_keys(~self.token_mask(tokens), tokens.starts)
        return MultiVector(vectors.index_select(0, rows), starts, tokens.layout.max_length)

    def token_mask(self, tokens: PackedTokens) -> Tensor:
        """[T] which tokens have a vector: punctuation is dropped from documents only, the first token from both sides."""
        is_query = tokens.side == "query"
        has_vector = torch.ones_like(tokens.ids, dtype=torch.bool) if is_query else ~torch.isin(tokens.ids, self.dropped_ids)
        return has_vector.index_fill(0, tokens.starts[:-1], self.first_token)


class CoilHead(nn.Module):
    """A linear map with bias, the same for queries and documents; terms are the token ids.

    [CLS] and [SEP] are left out on both sides, as they are no terms.
    """

    kind = ExactMatch.kind

    def __init__(self, hidden: int, special_tokens: SpecialTokens, *, dimension: int) -> None:
        super().__init__()
        self.projection = make_projection(hidden, dimension, "exact")
        self._separator = special_tokens.separator
        self._has_beginning = special_tokens.leading > 0

    def forward(self, states: Tensor, tokens: PackedTokens) -> ExactMatch:
        """states [T, H] -> terms [T'], vectors [T', D] in float32; a text with special tokens only has none."""
        keep = torch.ones_like(tokens.ids, dtype=torch.bool).index_fill(0, tokens.starts[:-1], not self._has_beginning)
        if self._separator is not None:
            keep &= tokens.ids != self._separator
        rows, starts = find_visible_keys(~keep, tokens.starts)
        return ExactMatch(tokens.ids.index_select(0, rows), self.projection(states.index_select(0, rows)).float(), starts)
