"""One vector per token, for late interaction (ColBERT; CAME eq. 5) or for exact matches of terms (COIL)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from moeir.backbones.tokens import Signs, Tokens
from moeir.errors import UsageError
from moeir.kernels.attention import attended_tokens
from moeir.representations.multivector import MultiVector

PADDINGS = ("neginf", "zero")


class Tokenwise(nn.Module):
    """A linear map without bias, the same for queries and documents.

    `normalise` makes unit vectors; `separator` keeps [SEP]; `punctuation` keeps the punctuation of documents; `padding`: `neginf` leaves
    the maximum as it is, `zero` floors it at 0 (as implementations that multiply by the mask do) by one zero vector per document.
    """

    def __init__(
        self,
        hidden: int,
        special_tokens: Signs,
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
        nn.init.normal_(self.projection.weight, std=0.02)
        self.normalise, self.padding = normalise, padding
        dropped_ids = [*([] if separator else [special_tokens.separator]), *([] if punctuation else special_tokens.punctuation)]
        self._separator = None if separator else special_tokens.separator
        self.register_buffer("dropped_ids", torch.tensor(dropped_ids, dtype=torch.int64), persistent=False)

    def forward(self, states: Tensor, tokens: Tokens) -> MultiVector:
        """states [T, H] -> vectors [T', D] in float32."""
        vectors = self.projection(states).float()
        vectors = F.normalize(vectors, dim=-1) if self.normalise else vectors
        representation = MultiVector(vectors, tokens.starts, tokens.layout.longest)
        if len(self.dropped_ids) and (tokens.side != "query" or self._separator is not None):
            representation = _keeping(representation, self.kept(tokens), tokens)
        if self.padding == "zero" and tokens.side != "query":
            representation = _with_zero(representation)
        return representation

    def kept(self, tokens: Tokens) -> Tensor:
        """[T] which tokens have a vector; the first token of a text always has one."""
        return self._kept(tokens).index_fill(0, tokens.starts[:-1], True)

    def _kept(self, tokens: Tokens) -> Tensor:
        """[T] which tokens are kept: punctuation is dropped from documents only, the separator from both sides."""
        if tokens.side != "query":
            return ~torch.isin(tokens.ids, self.dropped_ids)
        return tokens.ids != (-1 if self._separator is None else self._separator)


def _keeping(texts: MultiVector, keep: Tensor, tokens: Tokens) -> MultiVector:
    rows, starts = attended_tokens(~keep, tokens.starts)
    return MultiVector(texts.vectors.index_select(0, rows), starts, texts.longest)


def _with_zero(texts: MultiVector) -> MultiVector:
    """Append one zero vector to each text: each token shifts by the number of texts before its own."""
    count, total = len(texts), len(texts.vectors)
    shift = torch.arange(count + 1, device=texts.starts.device)
    rows = torch.arange(total, device=shift.device) + torch.repeat_interleave(shift[:-1], texts.starts.diff(), output_size=total)
    vectors = texts.vectors.new_zeros(len(texts.vectors) + count, texts.vectors.shape[1])
    longest = None if texts.longest is None else texts.longest + 1
    return MultiVector(vectors.index_copy(0, rows, texts.vectors), texts.starts + shift, longest)
