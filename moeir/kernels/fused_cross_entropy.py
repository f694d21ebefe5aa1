"""Fused linear cross-entropy against the tied word embeddings, one chunk of logits at a time.

The gradient is computed in the forward pass, since the backward pass only scales it by one number: three products with the vocabulary
instead of the four that recomputing the logits would take, at the memory of one gradient of the embeddings.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from moeir.kernels.precision import product_dtype

BYTES_AT_ONCE = 1 << 27  # of logits: 2,198 rows of 30,522 terms in bfloat16, half of that in float32
BYTES_IN_CACHE = 1 << 20  # of the logits that a CPU reduces at once

Reduction: TypeAlias = Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]]


def reduce_logits(logits: Tensor, bias: Tensor, targets: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What cross-entropy takes from logits: a function by itself, so that `torch.compile` can fuse its passes over them.

    logits [n, V] without bias [V], targets [n] -> the sum of losses, the number of correct top-1 predictions, and the gradients of that
    sum: [n, V] in `dtype` for the logits, [V] in float32 for the bias.
    """
    column, biased = targets[:, None], logits + bias
    correct = (biased.argmax(1) == targets).sum()
    log_probabilities = biased.log_softmax(1)
    target_log_probabilities = log_probabilities.gather(1, column)
    probabilities = log_probabilities.exp_()
    bias_gradient = probabilities.sum(0).index_add_(0, targets, -torch.ones_like(log_probabilities[:, 0]))
    gradient = probabilities.to(dtype).scatter_(1, column, target_log_probabilities.expm1().to(dtype))
    return -target_log_probabilities.sum(), correct, gradient, bias_gradient


def fused_linear_cross_entropy(
    states: Tensor, embedding: Tensor, bias: Tensor, targets: Tensor, reduce: Reduction = reduce_logits
) -> tuple[Tensor, Tensor]:
    """The mean over n predictions of -log softmax(states · embeddingᵀ + bias)[target], and the number of correct top-1 predictions.

    states [≥ n, E], embedding [V, E], bias [V], targets [n] -> loss [] in float32 with gradient, count [] int64; no predictions, loss 0.
    States beyond those of the n targets are filler, without effect.
    Under autocast only the factors of the products are in half precision; sums, logits and the softmax are float32. `reduce` is
    `reduce_logits`, or compiled from it.

    >>> fused_linear_cross_entropy(torch.zeros(2, 3), torch.ones(4, 3), torch.tensor([0.0, 0, 1, 0]), torch.tensor([2, 0]))
    (tensor(1.2437), tensor(1))
    """
    dtype = product_dtype(states)
    needs_gradient = torch.is_grad_enabled() and any(part.requires_grad for part in (states, embedding, bias))
    with torch.autocast(states.device.type, enabled=False):
        loss, correct = _FusedLinearCrossEntropy.apply(states, embedding, bias, targets, dtype, needs_gradient, reduce)
    return loss, correct


class _FusedLinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        embedding: Tensor,
        bias: Tensor,
        targets: Tensor,
        dtype: torch.dtype,
        needs_gradient: bool,
        reduce: Reduction,
    ) -> tuple[Tensor, Tensor]:
        rows, words = states.to(dtype), embedding.to(dtype)
        total, correct = torch.zeros((), device=states.device), torch.zeros((), dtype=torch.int64, device=states.device)
        gradients = [torch.zeros_like(part, dtype=torch.float32) for part in (states, embedding[:0], bias)] if needs_gradient else []
        at_once = max(1, BYTES_AT_ONCE // (len(words) * dtype.itemsize))
        for first in range(0, len(rows), at_once):
            part = slice(first, first + at_once)
            logits = _matmul(rows[part], words.T)  # [n, V]
            logit_gradients = logits if logits.dtype == dtype else torch.empty_like(logits, dtype=dtype)
            predictions = len(targets[part])
            for chunk in _split_rows(logits[:predictions]):
                loss, hits, gradient, bias_gradient = reduce(logits[chunk], bias, targets[part][chunk], dtype)
                total, correct = total + loss, correct + hits
                if needs_gradient:
                    logit_gradients[chunk] = gradient
                    gradients[2] += bias_gradient
            if needs_gradient:
                logit_gradients[predictions:] = 0
                gradients[0][part] = _matmul(logit_gradients, words)
                embedding_gradient = _matmul(logit_gradients.T, rows[part])  # [V, E]
                gradients[1] = gradients[1].add_(embedding_gradient) if first else embedding_gradient.float()
        if needs_gradient and not len(rows):
            gradients[1] = torch.zeros_like(embedding, dtype=torch.float32)
        ctx.save_for_backward(*gradients)
        ctx.dtypes, ctx.count = (states.dtype, embedding.dtype, bias.dtype), max(1, len(targets))
        ctx.mark_non_differentiable(correct)
        return total / ctx.count, correct

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        scale = upstream[0] / ctx.count
        gradients = [(part * scale).to(dtype) for part, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True)]
        return (*gradients, None, None, None, None)


def _split_rows(logits: Tensor) -> list[slice]:
    """The rows of logits [n, V] in parts; on a CPU so few in each that they fit the cache."""
    at_once = max(1, len(logits) if logits.is_cuda else BYTES_IN_CACHE // (4 * logits.shape[1]))
    return [slice(first, min(first + at_once, len(logits))) for first in range(0, len(logits), at_once)]


def _matmul(left: Tensor, right: Tensor) -> Tensor:
    """A matrix product; on CUDA with a float32 result for any dtype of the factors: half-precision factors, unrounded sum."""
    if left.is_cuda and left.dtype != torch.float32:
        return torch.mm(left, right, out_dtype=torch.float32)
    return left @ right
