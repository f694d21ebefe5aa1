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
from moeir.reranking.ledger import ScoreJournal, Scores
from moeir.reranking.library import CandidateTexts
from moeir.reranking.passages import PassageSplitter

TOP_DOCUMENTS = 10  # documents that users look at


@dataclass(frozen=True)
class ScoringConfig:
    """Settings of scoring: precision, tokens per batch, passages of long documents, and the experts if there is no cross-encoder.

    `patience`: number of documents in a row, in the order of the run, that may miss the top TOP_DOCUMENTS before the rest of the query
    is skipped; None: never.
    """

    dtype: torch.dtype
    device: str = "cpu"
    max_tokens: int = 4096
    passages: PassageSplitter = field(default_factory=PassageSplitter)
    experts: tuple[str, ...] = ()
    patience: int | None = None


def score_candidates(
    model: Path, candidates: Candidates, texts: CandidateTexts, config: ScoringConfig, journal: ScoreJournal, name: str, advance: Callable[[int], None]
) -> tuple[Scores, dict[str, Any]]:
    """Scores of a checkpoint for all candidates [n], NaN if skipped, and counts of the work."""
    checkpoint = open_checkpoint(model, config.device)
    options: dict[str, Any] = {"dtype": config.dtype, "max_tokens": config.max_tokens, "ledger": journal, "name": name}
    query, document = candidates.query, candidates.document
    if not checkpoint.architecture.reads_pairs:
        if config.patience is not None:
            raise UsageError(f"--patience {config.patience}: is for cross-encoders, and {model} is none; leave it out")
        names = experts.select_experts(checkpoint, config.experts, model)
        documents = texts.iter_documents(document, join_fields=False)
        scores = experts.score_with_experts(checkpoint, names, texts.queries, documents, query, document, advance=advance, **options)
        _check_finite(model, candidates, scores, np.arange(len(query)))
        return scores, {"pairs": len(query), "experts": names}
    tokenized = texts.tokenize(checkpoint, document, whole=config.passages.mode != "firstp")
    scores, passages, tokens = np.full(len(query), np.nan, dtype=np.float32), 0, 0
    for number, part in enumerate(_early_exit_batches(candidates, scores, config.patience)):
        rows = (query[part], tokenized.rows[document[part]])
        pairs, starts = config.passages.split_pairs(checkpoint.pair_tokenizer, tokenized.queries, tokenized.documents, *rows)
        progress = _PairProgress(advance, len(part), len(pairs.query_rows))
        options["name"] = name if config.patience is None else f"{name}.wave{number}"
        scores[part] = config.passages.aggregate(crossing.score_pairs(checkpoint, pairs, advance=progress, **options), starts)
        _check_finite(model, candidates, scores, part)
        passages, tokens = passages + len(pairs.query_rows), tokens + int(pairs.lengths.sum())
    unscored = int(np.isnan(scores).sum())
    advance(unscored)
    return scores, {"pairs": len(query) - unscored, "passages": passages, "tokens": tokens}


def _check_finite(model: Path, candidates: Candidates, scores: Scores, part: Numbers) -> None:
    """DataError for a score that is not finite: NaN would count as not scored."""
    for pair in part[~np.isfinite(scores[part])][:1].tolist():
        run = candidates.run
        pair_name = f"query {run.queries[candidates.query[pair]]!r} and document {run.document_ids[candidates.document[pair]]!r}"
        raise DataError(f"{model}: its score of {pair_name} is not a finite number; check the weights, or try --dtype float32")


def _early_exit_batches(candidates: Candidates, scores: Scores, patience: int | None) -> Iterator[Numbers]:
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
        active = [query for query in remaining if _reached_top(scores[ends[query] : ends[query] + first], patience)]


def _reached_top(scores: Scores, last: int) -> bool:
    """Whether one of the `last` documents is among the top TOP_DOCUMENTS of all [n] so far; of equal scores the earlier ranks first."""
    return len(scores) - last < TOP_DOCUMENTS or bool(scores[-last:].max() > np.partition(scores[:-last], -TOP_DOCUMENTS)[-TOP_DOCUMENTS])


class _PairProgress:
    """Converts progress in passages to progress in pairs."""

    def __init__(self, advance: Callable[[int], None], pairs: int, passages: int) -> None:
        self._advance, self._pairs, self._passages, self._done, self._reported = advance, pairs, passages, 0, 0

    def __call__(self, count: int) -> None:
        self._done += count
        reached = self._done * self._pairs // max(1, self._passages)
        self._advance(reached - self._reported)
        self._reported = reached
