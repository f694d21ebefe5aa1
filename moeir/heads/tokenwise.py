"""One vector for each token: late interaction (ColBERT; CAME eq. 5)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from moeir.backbones.tokens import Signs, Tokens
from moeir.errors import UsageError
from moeir.representations.multivector import MultiVector

PADDINGS = ("neginf", "zero")


class Tokenwise(nn.Module):
    """A linear map without bias, the same for queries and documents.

    Options: unit vectors (`normalise`); the separator kept or not; punctuation of documents kept or not; `padding`: `neginf` leaves the
    maximum as it is, `zero` floors it at 0 (as implementations do that multiply by the mask), by one zero vector in each document.
    """

    def __init__(
        self,
        hidden: int,
        signs: Signs,
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
        dropped = [*([] if separator else [signs.separator]), *([] if punctuation else signs.punctuation)]
        self._separator = None if separator else signs.separator
        self.register_buffer("dropped", torch.tensor(dropped, dtype=torch.int64), persistent=False)

    def forward(self, states: Tensor, tokens: Tokens) -> MultiVector:
        """states [T, H] -> vectors [T', D] in float32."""
        vectors = self.projection(states).float()
        vectors = F.normalize(vectors, dim=-1) if self.normalise else vectors
        representation = MultiVector(vectors, tokens.starts)
        if len(self.dropped):
            representation = _keeping(representation, self._kept(tokens), tokens)
        if self.padding == "zero" and tokens.side != "query":
            representation = _with_zero(representation)
        return representation

    def _kept(self, tokens: Tokens) -> Tensor:
        """[T] what stays: punctuation is dropped from documents only, the separator from both sides."""
        if tokens.side != "query":
            return ~torch.isin(tokens.ids, self.dropped)
        return tokens.ids != (-1 if self._separator is None else self._separator)


def _keeping(texts: MultiVector, kept: Tensor, tokens: Tokens) -> MultiVector:
    lengths = torch.zeros(len(texts), dtype=torch.int64, device=kept.device).index_add(0, tokens.owners(), kept.long())
    starts = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    return MultiVector(texts.vectors.index_select(0, kept.nonzero()[:, 0]), starts)


def _with_zero(texts: MultiVector) -> MultiVector:
    zero = MultiVector(texts.vectors.new_zeros(1, texts.vectors.shape[1]), texts.starts.new_tensor([0, 1]))
    both = MultiVector.concatenate([texts, zero])
    count = len(texts)
    sizes = both.starts[1:] - both.starts[:-1]
    starts = torch.cat([sizes.new_zeros(1), (sizes[:count] + 1).cumsum(0)])
    places = torch.full((int(starts[-1]),), len(texts.vectors), dtype=torch.int64, device=starts.device)
    owners = torch.repeat_interleave(torch.arange(count, device=starts.device), sizes[:count])
    inside = torch.arange(len(owners), device=starts.device) - texts.starts[owners]
    places[starts[owners] + inside] = torch.arange(len(owners), device=starts.device)
    return MultiVector(both.vectors.index_select(0, places), starts)
