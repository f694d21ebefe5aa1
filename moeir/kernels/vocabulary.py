"""The maximum over a text's positions of every vocabulary term, without keeping [T, V] for the gradient.

Only the winning position of each positive (text, term) pair takes part in the gradient, so only those products are recomputed:
exact values and gradients at the memory of the pairs (notes in performance of learned sparse heads: maximum first, log after).
"""

import torch
from torch import Tensor

from moeir.kernels.attention import Layout

TOKENS_AT_ONCE = 2048  # [2048, 30522] in float32 is 250 MB


@torch.no_grad()
def winners(states: Tensor, layout: Layout, embedding: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Which terms are positive somewhere in each text, and where they are strongest.

    states [T, H], embedding [V, H], bias [V] -> texts, terms, positions, each [pairs], ordered by text, then term.
    Silent tokens never win. Half precision if the caller runs under autocast.
    """
    texts, terms, positions = [], [], []
    number = 0
    for first, count, length in layout.groups(TOKENS_AT_ONCE):
        last = first + count * length
        logits = torch.nn.functional.linear(states[first:last], embedding)
        if layout.silent is not None:
            logits = logits.masked_fill(layout.silent[first:last, None], float("-inf"))
        best, place = logits.view(count, length, -1).max(dim=1)  # [n, V]
        text, term = (best.float() + bias > 0).nonzero(as_tuple=True)
        texts.append(text + number)
        terms.append(term)
        positions.append(first + text * length + place[text, term])
        number += count
    return torch.cat(texts), torch.cat(terms), torch.cat(positions)


def activations(states: Tensor, embedding: Tensor, bias: Tensor, terms: Tensor, positions: Tensor) -> Tensor:
    """The logits of chosen (position, term) pairs in float32, with gradient; [pairs]."""
    chosen = states.float().index_select(0, positions)
    return (chosen * embedding.float().index_select(0, terms)).sum(-1) + bias.float().index_select(0, terms)
