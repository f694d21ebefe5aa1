"""Scores of one checkpoint for the candidates of a run: a cross-encoder scores pairs, any other architecture adds its experts.

Pairs of a cross-encoder are sorted by length over all queries and scored in batches of a token budget, with prefetching.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from moeir.architectures.checkpoint import open_checkpoint
from moeir.backbones.pairs import Numbers
from moeir.errors import DataError, UsageError
from moeir.reranking import crossing, experts
from moeir.reranking.candidates import Candidates
from moeir.reranking.ledger import Ledger, Scores
from moeir.reranking.library import Library
from moeir.reranking.passages import Passages

BEST = 10  # documents that users look at


@dataclass(frozen=True)
class Manner:
    """Settings of scoring: precision, tokens per batch, passages of long documents, and the experts if there is no cross-encoder.

    `patience`: number of documents in a row, in the order of the run, that may miss the top TOP_DOCUMENTS before the rest of the query
    is skipped; None: never.
    """

    dtype: torch.dtype
    device: str = "cpu"
    max_tokens: int = 4096
    passages: Passages = field(default_factory=Passages)
    experts: tuple[str, ...] = ()
    patience: int | None = None


def scored(
    model: Path, candidates: Candidates, texts: Library, config: Manner, journal: Ledger, name: str, advance: Callable[[int], None]
) -> tuple[Scores, dict[str, Any]]:
    """Scores of a checkpoint for all candidates [n], NaN if skipped, and counts of the work."""
    checkpoint = open_checkpoint(model, config.device)
    options: dict[str, Any] = {"dtype": config.dtype, "max_tokens": config.max_tokens, "ledger": journal, "name": name}
    query, document = candidates.query, candidates.document
    if not checkpoint.architecture.pairs:
        if config.patience is not None:
            raise UsageError(f"--patience {config.patience}: is for cross-encoders, and {model} is none; leave it out")
        names = experts.chosen(checkpoint, config.experts, model)
        documents = texts.walked(document, fielded=False)
        scores = experts.scored(checkpoint, names, texts.queries, documents, query, document, advance=advance, **options)
        _refuse(model, candidates, scores, np.arange(len(query)))
        return scores, {"pairs": len(query), "experts": names}
    tokenized = texts.shelf(checkpoint, document, whole=config.passages.kind != "firstp")
    scores, passages, tokens = np.full(len(query), np.nan, dtype=np.float32), 0, 0
    for number, part in enumerate(_waves(candidates, scores, config.patience)):
        rows = (query[part], tokenized.rows[document[part]])
        pairs, starts = config.passages.pairs(checkpoint.pairing, tokenized.queries, tokenized.documents, *rows)
        progress = _Told(advance, len(part), len(pairs.query))
        options["name"] = name if config.patience is None else f"{name}.wave{number}"
        scores[part] = config.passages.together(crossing.scored(checkpoint, pairs, advance=progress, **options), starts)
        _refuse(model, candidates, scores, part)
        passages, tokens = passages + len(pairs.query), tokens + int(pairs.lengths.sum())
    unscored = int(np.isnan(scores).sum())
    advance(unscored)
    return scores, {"pairs": len(query) - unscored, "passages": passages, "tokens": tokens}


def _refuse(model: Path, candidates: Candidates, scores: Scores, part: Numbers) -> None:
    """DataError for a score that is not finite: NaN would count as not scored."""
    for pair in part[~np.isfinite(scores[part])][:1].tolist():
        run = candidates.run
        pair_name = f"query {run.queries[candidates.query[pair]]!r} and document {run.names[candidates.document[pair]]!r}"
        raise DataError(f"{model}: its score of {pair_name} is not a finite number; check the weights, or try --dtype float32")


def _waves(candidates: Candidates, scores: Scores, patience: int | None) -> Iterator[Numbers]:
    """Candidates to score next: all of them, or the next `patience` of every query, until a batch adds none to its top TOP_DOCUMENTS.

    `scores` [n] has the scores of all earlier batches when the next one is requested.
    """
    ends = np.searchsorted(candidates.query, np.arange(len(candidates.run) + 1))
    if patience is None:
        yield np.arange(len(scores))
        return
    active, first = list(range(len(candidates.run))), 0
    while active:
        parts = [np.arange(ends[query] + first, min(ends[query] + first + patience, ends[query + 1])) for query in active]
        yield np.concatenate(parts)
        first += patience
        remaining = [query for query in active if ends[query] + first < ends[query + 1]]
        active = [query for query in remaining if _entered(scores[ends[query] : ends[query] + first], patience)]


def _entered(scores: Scores, last: int) -> bool:
    """Whether one of the `last` documents is among the top TOP_DOCUMENTS of all [n] so far; of equal scores the earlier ranks first."""
    return len(scores) - last < BEST or bool(scores[-last:].max() > np.partition(scores[:-last], -BEST)[-BEST])


class _Told:
    """Converts progress in passages to progress in pairs."""

    def __init__(self, advance: Callable[[int], None], pairs: int, passages: int) -> None:
        self._advance, self._pairs, self._passages, self._done, self._said = advance, pairs, passages, 0, 0

    def __call__(self, count: int) -> None:
        self._done += count
        reached = self._done * self._pairs // max(1, self._passages)
        self._advance(reached - self._said)
        self._said = reached
