"""Late interaction of packed texts without [Q, N, L, M]: a document at a time, and nothing but the winners is kept for the gradient.

Only real tokens are multiplied, only winners have a gradient; sums are taken in a fixed order: the same bytes on any number of threads.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from moeir.kernels.pairs import bags

NUMBERS_AT_ONCE = {"cpu": 1 << 17, "cuda": 1 << 26}  # products of tokens; half a megabyte stays in the cache of a core
WINNERS_AT_ONCE = {"cpu": 1 << 12, "cuda": 1 << 22}  # of the gradient


def late_interaction(
    queries: Tensor, query_starts: Tensor, documents: Tensor, document_starts: Tensor, longest: int | None = None
) -> Tensor:
    """Each query token's best document token, added up; of equals, the first learns.

    queries [T, D] packed, query_starts [Q+1], documents [U, D] packed, document_starts [N+1] -> [Q, N]. A document without tokens scores
    −∞, a query without tokens 0. No document has more than `longest` tokens; where nobody knows, CUDA is asked.
    """
    if not len(queries) or len(document_starts) == 1:
        return queries.new_zeros(len(query_starts) - 1, len(document_starts) - 1)
    if longest is None or not queries.is_cuda:
        longest = int(document_starts.diff().max())
    scores: Tensor = _LateInteraction.apply(queries, query_starts, documents, document_starts, longest)
    return scores


class _LateInteraction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, query_starts: Tensor, documents: Tensor, document_starts: Tensor, longest: int
    ) -> Tensor:
        best = queries.new_full((len(document_starts) - 1, len(queries)), float("-inf"))  # [N, T]
        small = longest <= torch.iinfo(torch.int16).max
        winners = torch.zeros(best.shape, dtype=torch.int16 if small else torch.int32, device=best.device)
        if longest:
            (_padded if queries.is_cuda else _one_by_one)(queries, documents, document_starts, longest, best, winners)
        ctx.save_for_backward(queries, query_starts, documents, document_starts, winners)
        places = torch.arange(len(queries), device=best.device)
        return F.embedding_bag(places, best.T.contiguous(), query_starts[:-1], mode="sum")  # in the order of the tokens

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        queries, query_starts, documents, document_starts, winners = ctx.saved_tensors
        for_queries, for_documents = torch.zeros_like(queries), torch.zeros_like(documents)
        asked = torch.arange(len(queries), dtype=torch.int32, device=queries.device)
        sizes, lengths = query_starts.diff(), document_starts.diff()
        slopes = (gradients[0] * (lengths > 0)).T  # [N, Q]
        at_once = max(1, WINNERS_AT_ONCE[queries.device.type] // len(queries))
        for first, last, begin, end in _runs(document_starts, len(documents), at_once):
            weights = torch.repeat_interleave(slopes[first:last], sizes, 1, output_size=len(queries))  # [n, T]
            starts = (document_starts[first:last, None] - begin).clamp(max=end - begin - 1)  # one without tokens has no weight either
            rows = winners[first:last] + starts.int()
            part = documents[begin:end]
            for_queries += F.embedding_bag(rows.T.contiguous(), part, mode="sum", per_sample_weights=weights.T.contiguous())
            for_documents[begin:end] += bags(queries, asked.repeat(last - first), weights.flatten(), rows.flatten(), end - begin)
        return for_queries, None, for_documents, None, None


def _one_by_one(queries: Tensor, documents: Tensor, starts: Tensor, longest: int, best: Tensor, winners: Tensor) -> None:
    """For a processor: a document against as many query tokens as keep the products in its cache.

    Torch looks for the place of a maximum slowly, but for values fast, and fastest down the columns: a column's first maximum is where
    equality with it, times what counts down from M, is largest.
    """
    step = min(len(queries), max(64, NUMBERS_AT_ONCE["cpu"] // longest))
    room = queries.new_empty(2, longest * step)
    down = torch.arange(longest, 0, -1, dtype=queries.dtype)[:, None]
    for number, (begin, end) in enumerate(pairwise(starts.tolist())):
        length = end - begin
        for first in range(0, len(queries) if length else 0, step):
            asked = queries[first : first + step]
            products, equal = room[:, : length * len(asked)].view(2, length, len(asked))
            torch.mm(documents[begin:end], asked.T, out=products)
            strongest, place = best[number, first : first + step], winners[number, first : first + step]
            torch.amax(products, 0, out=strongest)
            torch.eq(products, strongest, out=equal).mul_(down[longest - length :])
            place.copy_((length - equal.amax(0)).clamp_(max=length - 1))  # what is no number equals nothing


def _padded(queries: Tensor, documents: Tensor, starts: Tensor, longest: int, best: Tensor, winners: Tensor) -> None:
    """For CUDA: as many neighbouring documents at once as NUMBERS_AT_ONCE allows, padded to `longest` tokens; padding never wins."""
    step = max(1, NUMBERS_AT_ONCE["cuda"] // (longest * len(queries)))
    for first in range(0, len(best), step):
        last = min(first + step, len(best))
        places = torch.arange(longest, device=queries.device) + starts[first:last, None]  # [n, M]
        products = documents.index_select(0, places.clamp(max=len(documents) - 1).flatten()) @ queries.T
        padding = places >= starts[first + 1 : last + 1, None]
        strongest, place = products.view(*places.shape, -1).masked_fill_(padding[..., None], float("-inf")).max(1)
        best[first:last] = strongest
        winners[first:last] = place


def _runs(starts: Tensor, total: int, at_once: int) -> Iterator[tuple[int, int, int, int]]:
    """Neighbouring documents, `at_once` of them or fewer: (first, last + 1, first token, last token + 1).

    Those of CUDA lie among all tokens, as it would have to be asked where; on a processor only what has tokens is walked.
    """
    bounds = None if starts.is_cuda else starts.tolist()
    for first in range(0, len(starts) - 1, at_once):
        last = min(first + at_once, len(starts) - 1)
        if bounds is None:
            yield first, last, 0, total
        elif bounds[first] < bounds[last]:
            yield first, last, bounds[first], bounds[last]
