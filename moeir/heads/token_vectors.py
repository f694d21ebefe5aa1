"""One vector per token, for late interaction (ColBERT; CAME eq. 5), or for late interaction between tokens of the same term only (COIL,
Gao et al. 2021).
"""

import torch
from torch import Tensor, nn

from moeir.backbones.layers import init_weights
from moeir.backbones.packed_tokens import PackedTokens, SpecialTokens
from moeir.errors import UsageError
from moeir.kernels.attention import find_visible_keys
from moeir.kernels.precision import normalize
from moeir.representations.exact_match import ExactMatch
from moeir.representations.multivector import MultiVector

PADDINGS = ("neginf", "zero")


class TokenVectorHead(nn.Module):
    """A linear map without bias, the same for queries and documents.

    `normalise` makes unit vectors; `separator` keeps [SEP]; `punctuation` keeps the punctuation of documents; `padding`: `neginf` leaves
    the maximum as it is, `zero` floors it at 0 (as implementations that multiply by the mask do) by one zero vector per document.
    """

    kind = MultiVector.kind

    def __init__(
        self,
        hidden: int,
        special_tokens: SpecialTokens,
        *,
        dimension: int = 128,
        normalise: bool = False,
        separator: bool = True,
        punctuation: bool = True,
        padding: str = "neginf",
    ) -> None:
        super().__init__()
        if padding not in PADDINGS:
            raise UsageError(f"padding={padding}: expected one of {', '.join(PADDINGS)}")
        if dimension < 1:
            raise UsageError(f"local dimension {dimension}: expected at least 1")
        self.projection = nn.Linear(hidden, dimension, bias=False)
        init_weights(self.projection, 0.02)
        self.normalise, self.padding = normalise, padding
        dropped_ids = [*([] if separator else [special_tokens.separator]), *([] if punctuation else special_tokens.punctuation)]
        self._separator = None if separator else special_tokens.separator
        self.register_buffer("dropped_ids", torch.tensor(dropped_ids, dtype=torch.int64), persistent=False)

    def forward(self, states: Tensor, tokens: PackedTokens) -> MultiVector:
        """states [T, H] -> vectors [T', D] in float32."""
        vectors = self.projection(states).float()
        vectors = normalize(vectors) if self.normalise else vectors
        representation = MultiVector(vectors, tokens.starts, tokens.layout.max_length)
        if len(self.dropped_ids) and (tokens.side != "query" or self._separator is not None):
            rows, starts = find_visible_keys(~self.token_mask(tokens), tokens.starts)
            representation = MultiVector(vectors.index_select(0, rows), starts, representation.max_length)
        if self.padding == "zero" and tokens.side != "query":
            representation = _append_zero_vector(representation)
        return representation

    def token_mask(self, tokens: PackedTokens) -> Tensor:
        """[T] which tokens have a vector: punctuation is dropped from documents only, the separator from both sides, first tokens never."""
        if tokens.side == "query":
            has_vector = tokens.ids != (-1 if self._separator is None else self._separator)
        else:
            has_vector = ~torch.isin(tokens.ids, self.dropped_ids)
        return has_vector.index_fill(0, tokens.starts[:-1], True)


def _append_zero_vector(texts: MultiVector) -> MultiVector:
    """Append one zero vector to each text: each token shifts by the number of texts before its own."""
    count, total = len(texts), len(texts.vectors)
    shift = torch.arange(count + 1, device=texts.starts.device)
    rows = torch.arange(total, device=shift.device) + torch.repeat_interleave(shift[:-1], texts.starts.diff(), output_size=total)
    vectors = texts.vectors.new_zeros(len(texts.vectors) + count, texts.vectors.shape[1])
    longest = None if texts.max_length is None else texts.max_length + 1
    return MultiVector(vectors.index_copy(0, rows, texts.vectors), texts.starts + shift, longest)


class CoilHead(nn.Module):
    """A linear map with bias, the same for queries and documents; terms are the token ids.

    [CLS] is left out on both sides, as it is no term. Options: `separator` keeps [SEP]; `layer_norm` after the map; `relu` after that.
    """

    kind = ExactMatch.kind

    def __init__(
        self,
        hidden: int,
        special_tokens: SpecialTokens,
        *,
        dimension: int = 32,
        separator: bool = False,
        layer_norm: bool = False,
        relu: bool = False,
    ) -> None:
        super().__init__()
        if dimension < 1:
            raise UsageError(f"exact dimension {dimension}: expected at least 1")
        self.projection = nn.Linear(hidden, dimension)
        init_weights(self.projection, 0.02)
        self.norm = nn.LayerNorm(dimension) if layer_norm else None
        self.relu = relu
        self._separator = None if separator else special_tokens.separator

    def forward(self, states: Tensor, tokens: PackedTokens) -> ExactMatch:
        """states [T, H] -> terms [T'], vectors [T', D] in float32; a text with special tokens only has none."""
        keep = torch.ones_like(tokens.ids, dtype=torch.bool).index_fill(0, tokens.starts[:-1], False)
        if self._separator is not None:
            keep &= tokens.ids != self._separator
        rows, starts = find_visible_keys(~keep, tokens.starts)
        vectors = self.projection(states.index_select(0, rows)).float()
        vectors = vectors if self.norm is None else self.norm(vectors).float()
        return ExactMatch(tokens.ids.index_select(0, rows), vectors.relu() if self.relu else vectors, starts)
