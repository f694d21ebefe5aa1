"""Cross-entropy of chosen states against the tied word embeddings, without ever holding more than a part of their logits.

The gradient is worked out while a part's logits are there, as all of it grows with the one number that comes back: three products with
the vocabulary instead of the four that computing the logits again would take, at the memory of one gradient of the embeddings.
"""

from typing import Any

import torch
from torch import Tensor

LOGITS_AT_ONCE = 1 << 25  # in float32 128 MiB: 1,099 rows of 30,522 words


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
        gradients = [torch.zeros_like(part, dtype=torch.float32) for part in (states, embedding, bias)] if learns else []
        at_once = max(1, LOGITS_AT_ONCE // len(words))
        for first in range(0, len(rows), at_once):
            part = slice(first, first + at_once)
            wanted = targets[part, None]
            logits = _product(rows[part], words.T).add_(bias)  # [n, V]
            correct += (logits.argmax(1) == wanted[:, 0]).sum()
            norm = logits.logsumexp(1, keepdim=True)
            total += (norm - logits.gather(1, wanted)).sum()
            if learns:
                slopes = logits.sub_(norm).exp_().scatter_add_(1, wanted, torch.full_like(norm, -1.0))
                gradients[2] += slopes.sum(0)
                halved = slopes.to(dtype)
                gradients[0][part] = _product(halved, words)
                gradients[1] += _product(halved.T, rows[part])
        ctx.save_for_backward(*gradients)
        ctx.dtypes, ctx.count = (states.dtype, embedding.dtype, bias.dtype), max(1, len(rows))
        ctx.mark_non_differentiable(correct)
        return total / ctx.count, correct

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        scale = upstream[0] / ctx.count
        found = [(part * scale).to(dtype) for part, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True)]
        return (*found, None, None, None)


def _product(left: Tensor, right: Tensor) -> Tensor:
    """A matrix product in float32, whatever its factors are; CUDA adds up half-precision factors without rounding the sum."""
    if left.is_cuda and left.dtype != torch.float32:
        return torch.mm(left, right, out_dtype=torch.float32)
    return (left @ right).float()
