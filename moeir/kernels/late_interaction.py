"""Late interaction without [Q, N, L, M]: queries in blocks, and nothing but the winners is kept for the gradient."""

from typing import Any

import torch
from torch import Tensor

NUMBERS_AT_ONCE = 2**23  # 32 MB in float32


def late_interaction(queries: Tensor, query_mask: Tensor, documents: Tensor, document_mask: Tensor) -> Tensor:
    """Each query token's best document token, added up; of equals, one learns.

    queries [Q, L, D], documents [N, M, D], masks true on real tokens -> [Q, N].
    """
    scores: Tensor = _LateInteraction.apply(queries, query_mask, documents, document_mask)
    return scores


class _LateInteraction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, queries: Tensor, query_mask: Tensor, documents: Tensor, document_mask: Tensor) -> Tensor:
        tokens, padding = documents.flatten(0, 1), ~document_mask
        step = max(1, NUMBERS_AT_ONCE // max(1, queries.shape[1] * len(tokens)))
        scores, winners = [], []
        for block, mask in zip(queries.split(step), query_mask.split(step), strict=True):
            similarity = (block.flatten(0, 1) @ tokens.T).view(*block.shape[:2], *padding.shape)  # [q, L, N, M]
            best, place = similarity.masked_fill_(padding, float("-inf")).max(-1)  # padding never wins
            scores.append(best.masked_fill_(~mask[..., None], 0.0).sum(1))
            winners.append(place.int())
        ctx.save_for_backward(queries, query_mask, documents, torch.cat(winners))
        ctx.step = step
        return torch.cat(scores)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, Tensor, None]:
        queries, query_mask, documents, winners = ctx.saved_tensors
        tokens, for_queries = documents.flatten(0, 1), []
        for_tokens = torch.zeros_like(tokens)
        parts = (column.split(ctx.step) for column in (queries, query_mask, winners, gradients[0]))
        for block, mask, place, gradient in zip(*parts, strict=True):
            weights = gradient[:, None] * mask[..., None]  # [q, L, N]
            spread = weights.new_zeros(*place.shape, documents.shape[1]).scatter_(-1, place[..., None].long(), weights[..., None])
            spread = spread.view(-1, len(tokens))  # [q * L, N * M]
            for_queries.append((spread @ tokens).view_as(block))
            for_tokens.addmm_(spread.T, block.flatten(0, 1))
        return torch.cat(for_queries), None, for_tokens.view_as(documents), None
