"""Cross-encoder scores of pairs: sorted by length over all queries, in batches of a token budget, with prefetching."""

from collections.abc import Callable, Iterator

import numpy as np
import torch

from moeir.architectures.checkpoint import RetrievalModel
from moeir.backbones.ahead import prefetch
from moeir.backbones.pairs import Numbers, PackedPairs
from moeir.backbones.precision import autocast
from moeir.backbones.tokens import PackedTokens
from moeir.reranking.ledger import ScoreJournal, Scores


@torch.no_grad()
def score_pairs(
    checkpoint: RetrievalModel,
    pairs: PackedPairs,
    *,
    dtype: torch.dtype,
    max_tokens: int,
    journal: ScoreJournal | None = None,
    name: str = "scores",
    advance: Callable[[int], None] = lambda count: None,
) -> Scores:
    """Score of every pair [n], float32, longest pairs first. `journal` saves them under `name`; `advance` gets the number of new scores."""
    device, architecture = str(checkpoint.device), checkpoint.architecture.eval()
    order = np.argsort(-pairs.lengths, kind="stable")
    score_log = (ScoreJournal(None) if journal is None else journal).open_log(name, len(order))
    advance(score_log.done)
    with autocast(dtype, device):
        for tokens in prefetch(_pair_batches(pairs, order[score_log.done :], max_tokens, device)):
            score_log.add(architecture(tokens.to(device))["relevance"].vectors[:, 0].cpu().numpy())
            advance(len(tokens))
    scores = np.empty(len(order), dtype=np.float32)
    scores[order] = score_log.close()
    return scores


def _pair_batches(pairs: PackedPairs, order: Numbers, max_tokens: int, device: str) -> Iterator[PackedTokens]:
    """Batches of consecutive pairs of at most `max_tokens` tokens, or of one pair."""
    for rows in split_by_tokens(order, pairs.lengths[order], max_tokens):
        tokens = pairs.pack(rows).sort_by_length()
        yield tokens.pin_memory() if device.startswith("cuda") else tokens


def split_by_tokens(rows: Numbers, lengths: Numbers, max_tokens: int) -> Iterator[Numbers]:
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
