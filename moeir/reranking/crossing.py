"""Cross-encoder scores of pairs: sorted by length over all queries, in batches of a token budget, with prefetching."""

from collections.abc import Callable, Iterator

import numpy as np
import torch

from moeir.architectures.checkpoint import OpenCheckpoint
from moeir.backbones.ahead import walked_ahead
from moeir.backbones.pairs import Numbers, Pairs
from moeir.backbones.precision import autocast
from moeir.backbones.tokens import Tokens
from moeir.reranking.ledger import Ledger, Scores


@torch.no_grad()
def scored(
    checkpoint: OpenCheckpoint,
    pairs: Pairs,
    *,
    dtype: torch.dtype,
    max_tokens: int,
    journal: Ledger | None = None,
    name: str = "scores",
    advance: Callable[[int], None] = lambda count: None,
) -> Scores:
    """Score of every pair [n], float32, longest pairs first. `journal` saves them under `name`; `advance` gets the number of new scores."""
    device, architecture = str(checkpoint.device), checkpoint.architecture.eval()
    order = np.argsort(-pairs.lengths, kind="stable")
    score_log = (Ledger(None) if journal is None else journal).opened(name, len(order))
    advance(score_log.done)
    with autocast(dtype, device):
        for tokens in walked_ahead(_packed(pairs, order[score_log.done :], max_tokens, device)):
            score_log.add(architecture(tokens.to(device))["relevance"].vectors[:, 0].cpu().numpy())
            advance(len(tokens))
    scores = np.empty(len(order), dtype=np.float32)
    scores[order] = score_log.close()
    return scores


def _packed(pairs: Pairs, order: Numbers, max_tokens: int, device: str) -> Iterator[Tokens]:
    """Batches of consecutive pairs of at most `max_tokens` tokens, or of one pair."""
    for rows in cut(order, pairs.lengths[order], max_tokens):
        tokens = pairs.packed(rows).sort_by_length()
        yield tokens.pinned() if device.startswith("cuda") else tokens


def cut(rows: Numbers, lengths: Numbers, max_tokens: int) -> Iterator[Numbers]:
    """Split rows into batches of at most `max_tokens` tokens in all, or of one row; a resumed rest is split like the whole.

    >>> [part.tolist() for part in split_by_tokens(np.arange(4), np.array([5, 3, 3, 9]), 6)]
    [[0], [1, 2], [3]]
    """
    ends, first = lengths.cumsum(), 0
    while first < len(rows):
        before = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + max_tokens, side="right")))
        yield rows[first:last]
        first = last
