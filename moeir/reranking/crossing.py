"""Pairs through a cross-encoder: sorted by length over all queries, in batches of so many tokens, each made while another is computed."""

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
    """The score of every pair [n], float32; the longest first. `ledger` keeps what is done, under `name`; `advance` is told how much."""
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
    """Batches of neighbours in an order, of at most `max_tokens` tokens or of one pair."""
    for rows in cut(order, pairs.lengths[order], max_tokens):
        tokens = pairs.packed(rows).sort_by_length()
        yield tokens.pinned() if device.startswith("cuda") else tokens


def cut(rows: Numbers, lengths: Numbers, max_tokens: int) -> Iterator[Numbers]:
    """Rows in batches whose lengths add up to at most `most`, or of one row: the rest of a walk is cut as in the whole of it.

    >>> [part.tolist() for part in cut(np.arange(4), np.array([5, 3, 3, 9]), 6)]
    [[0], [1, 2], [3]]
    """
    ends, first = lengths.cumsum(), 0
    while first < len(rows):
        before = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + max_tokens, side="right")))
        yield rows[first:last]
        first = last
