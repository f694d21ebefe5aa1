"""Late interaction (MaxSim) of packed texts without [Q, N, L, M]: a few documents at a time; only the argmax is stored for the gradient.

Only maxima have a gradient; sums have a fixed order: the same bytes on any number of threads.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from moeir.kernels.gathered_products import segment_weighted_sum

PRODUCTS_AT_ONCE = {"cpu": 1 << 17, "cuda": 1 << 26}  # products of tokens
WINNERS_AT_ONCE = {"cpu": 1 << 12, "cuda": 1 << 22}  # (query token, document) pairs per block of the backward pass


def late_interaction(
    queries: Tensor, query_starts: Tensor, documents: Tensor, document_starts: Tensor, max_length: int | None = None
) -> Tensor:
    """MaxSim: the sum over query tokens of the best document token; of ties, the first gets the gradient.

    queries [T, D] packed, query_starts [Q+1], documents [U, D] packed, document_starts [N+1] -> [Q, N]. A document without tokens scores
    −∞, a query without tokens 0. No document has more than `max_length` tokens; None computes it, which syncs on CUDA.
    """
    if not len(queries) or len(document_starts) == 1:
        return queries.new_zeros(len(query_starts) - 1, len(document_starts) - 1)
    if max_length is None or not queries.is_cuda:
        max_length = int(document_starts.diff().max())
    scores: Tensor = _LateInteraction.apply(queries, query_starts, documents, document_starts, max_length)
    return scores


class _LateInteraction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, queries: Tensor, query_starts: Tensor, documents: Tensor, document_starts: Tensor, longest: int) -> Tensor:
        best = queries.new_full((len(document_starts) - 1, len(queries)), float("-inf"))  # [N, T]
        small = longest <= torch.iinfo(torch.int16).max
        winners = torch.zeros(best.shape, dtype=torch.int16 if small else torch.int32, device=best.device)
        if longest:
            _find_maxima(queries, documents, document_starts, longest, best, winners)
        ctx.save_for_backward(queries, query_starts, documents, document_starts, winners)
        token_rows = torch.arange(len(queries), device=best.device)
        return F.embedding_bag(token_rows, best.T.contiguous(), query_starts[:-1], mode="sum")  # in the order of the tokens

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        queries, query_starts, documents, document_starts, winners = ctx.saved_tensors
        query_gradient, document_gradient = torch.zeros_like(queries), torch.zeros_like(documents)
        token_rows = torch.arange(len(queries), dtype=torch.int32, device=queries.device)
        sizes, lengths = query_starts.diff(), document_starts.diff()
        score_gradient = (gradients[0] * (lengths > 0)).T  # [N, Q]
        at_once = max(1, WINNERS_AT_ONCE[queries.device.type] // len(queries))
        for first, last, begin, end in _document_blocks(document_starts, len(documents), at_once):
            weights = torch.repeat_interleave(score_gradient[first:last], sizes, 1, output_size=len(queries))  # [n, T]
            starts = (document_starts[first:last, None] - begin).clamp(max=end - begin - 1)  # a document without tokens has weight 0
            rows = winners[first:last] + starts.int()
            part = documents[begin:end]
            query_gradient += F.embedding_bag(rows.T.contiguous(), part, mode="sum", per_sample_weights=weights.T.contiguous())
            repeated = token_rows.repeat(last - first)
            document_gradient[begin:end] += segment_weighted_sum(queries, repeated, weights.flatten(), rows.flatten(), end - begin)
        return query_gradient, None, document_gradient, None, None


def _find_maxima(queries: Tensor, documents: Tensor, starts: Tensor, longest: int, best: Tensor, winners: Tensor) -> None:
    """As many neighbouring documents at once as PRODUCTS_AT_ONCE allows, padded to `longest` tokens; padding never wins."""
    step = max(1, PRODUCTS_AT_ONCE[queries.device.type] // (longest * len(queries)))
    for first in range(0, len(best), step):
        last = min(first + step, len(best))
        positions = torch.arange(longest, device=queries.device) + starts[first:last, None]  # [n, M]
        products = documents.index_select(0, positions.clamp(max=len(documents) - 1).flatten()) @ queries.T
        padding = positions >= starts[first + 1 : last + 1, None]
        maxima, argmax = products.view(*positions.shape, -1).masked_fill_(padding[..., None], float("-inf")).max(1)
        best[first:last] = maxima
        winners[first:last] = argmax


def _document_blocks(starts: Tensor, total: int, at_once: int) -> Iterator[tuple[int, int, int, int]]:
    """Blocks of at most `at_once` neighbouring documents: (first, last + 1, first token, last token + 1).

    On CUDA the token range is that of all documents, since the exact one needs a host sync; on a CPU blocks without tokens are skipped.
    """
    bounds = None if starts.is_cuda else starts.tolist()
    for first in range(0, len(starts) - 1, at_once):
        last = min(first + at_once, len(starts) - 1)
        if bounds is None:
            yield first, last, 0, total
        elif bounds[first] < bounds[last]:
            yield first, last, bounds[first], bounds[last]
