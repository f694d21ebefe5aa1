"""Cross-entropy of chosen states against the tied word embeddings, without ever holding more than a part of their logits.

The gradient is worked out while a part's logits are there, as all of it grows with the one number that comes back: three products with
the vocabulary instead of the four that computing the logits again would take, at the memory of one gradient of the embeddings.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

BYTES_AT_ONCE = 1 << 27  # of logits: 2,198 rows of 30,522 words in bfloat16, half of that in float32
BYTES_IN_CACHE = 1 << 20  # of what a processor works on at a time


def token_loss(states: Tensor, embedding: Tensor, bias: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The mean over n predictions of -log softmax(states · embeddingᵀ + bias)[target], and how many strongest words are the target.

    states [n, E], embedding [V, E], bias [V], targets [n] -> loss [] in float32 with gradient, count [] int64; no predictions, loss 0.
    Under autocast the products, and only they, are of half-precision factors; sums, logits and the softmax are float32.

    >>> token_loss(torch.zeros(2, 3), torch.ones(4, 3), torch.tensor([0.0, 0, 1, 0]), torch.tensor([2, 0]))
    (tensor(1.2437), tensor(1))
    """
    kind = states.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else states.dtype
    learns = torch.is_grad_enabled() and any(part.requires_grad for part in (states, embedding, bias))
    with torch.autocast(kind, enabled=False):
        loss, correct = _TokenLoss.apply(states, embedding, bias, targets, dtype, learns)
    return loss, correct


class _TokenLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, states: Tensor, embedding: Tensor, bias: Tensor, targets: Tensor, dtype: torch.dtype, learns: bool
    ) -> tuple[Tensor, Tensor]:
        rows, words = states.to(dtype), embedding.to(dtype)
        total, correct = torch.zeros((), device=states.device), torch.zeros((), dtype=torch.int64, device=states.device)
        gradients = [torch.zeros_like(part, dtype=torch.float32) for part in (states, embedding[:0], bias)] if learns else []
        at_once = max(1, BYTES_AT_ONCE // (len(words) * dtype.itemsize))
        for first in range(0, len(rows), at_once):
            part = slice(first, first + at_once)
            logits = _product(rows[part], words.T)  # [n, V]
            for some, known, likely in _in_cache(logits):
                wanted = targets[part][some, None]
                torch.add(logits[some], bias, out=known)
                correct += (known.argmax(1) == wanted[:, 0]).sum()
                torch.log_softmax(known, 1, out=likely)
                total -= likely.gather(1, wanted).sum()
                if learns:
                    slopes = likely.exp_().scatter_add_(1, wanted, torch.full_like(wanted, -1, dtype=torch.float32))
                    gradients[2] += slopes.sum(0)
                    logits[some] = slopes
            if learns:
                slopes = logits.to(dtype)
                gradients[0][part] = _product(slopes, words)
                found = _product(slopes.T, rows[part])  # [V, E]
                gradients[1] = gradients[1].add_(found) if first else found.float()
        if learns and not len(rows):
            gradients[1] = torch.zeros_like(embedding, dtype=torch.float32)
        ctx.save_for_backward(*gradients)
        ctx.dtypes, ctx.count = (states.dtype, embedding.dtype, bias.dtype), max(1, len(rows))
        ctx.mark_non_differentiable(correct)
        return total / ctx.count, correct

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        scale = upstream[0] / ctx.count
        found = [(part * scale).to(dtype) for part, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True)]
        return (*found, None, None, None)


def _in_cache(logits: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Rows to work on at a time, and room in float32 to do it twice; on a processor so few rows that the room stays in its cache."""
    most = len(logits) if logits.is_cuda else BYTES_IN_CACHE // (4 * logits.shape[1])
    count = max(1, min(most, len(logits)))
    room = torch.empty(2, count, logits.shape[1], device=logits.device)
    for first in range(0, len(logits), count):
        rows = slice(first, min(first + count, len(logits)))
        yield rows, room[0, : rows.stop - first], room[1, : rows.stop - first]


def _product(left: Tensor, right: Tensor) -> Tensor:
    """A matrix product, on CUDA in float32 whatever its factors are: it adds up half-precision factors without rounding the sum."""
    if left.is_cuda and left.dtype != torch.float32:
        return torch.mm(left, right, out_dtype=torch.float32)
    return left @ right
