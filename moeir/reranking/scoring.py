"""Scores of the documents of a run: by a cross-encoder, or exact ones by the experts of an architecture.

Cross-encoder: pairs sorted by length over all queries, in batches of a token budget, with prefetching.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from moeir.architectures.base import EncoderOutput
from moeir.architectures.checkpoint import RetrievalModel, open_checkpoint
from moeir.backbones.device import autocast
from moeir.backbones.packed_pairs import PackedPairs
from moeir.backbones.packed_tokens import Numbers, PackedTokens
from moeir.backbones.prefetch import map_batches, prefetch
from moeir.errors import DataError, UsageError
from moeir.kernels.token_budget import split_by_tokens
from moeir.reranking.candidates import Candidates, CandidateTexts
from moeir.reranking.score_journal import ScoreJournal, Scores

DOCUMENTS_PER_BATCH, PAIRS_PER_BATCH = 256, 512


@dataclass(frozen=True)
class ScoringConfig:
    """Settings of scoring: precision, tokens per batch, and the experts if there is no cross-encoder."""

    dtype: torch.dtype
    device: str = "cpu"
    max_tokens: int = 4096
    experts: tuple[str, ...] = ()


def score_candidates(
    model: Path | RetrievalModel,
    candidates: Candidates,
    texts: CandidateTexts,
    config: ScoringConfig,
    advance: Callable[[int], None],
    journal_file: Path | None = None,
) -> tuple[Scores, dict[str, Any]]:
    """Scores of a checkpoint, or of one that is open and packed, for all candidates [n], and counts of the work; saved in the journal, if
    any, while it runs."""
    checkpoint = open_checkpoint(model, config.device) if isinstance(model, Path) else model
    if checkpoint is not model:
        checkpoint.pack_for_inference(config.dtype)
    query, document = candidates.query, candidates.document
    counts: dict[str, Any] = {"pairs": len(query)}
    if not checkpoint.architecture.reads_pairs:
        counts["experts"] = select_experts(checkpoint, config.experts, model)
        journal = ScoreJournal(journal_file, len(query))
        scores = _score_with_experts(checkpoint, counts["experts"], candidates, texts, config, journal, advance)
    else:
        pairs = texts.make_pairs(checkpoint, query, document)
        counts["tokens"] = int(pairs.lengths.sum())
        journal = ScoreJournal(journal_file, len(query))
        scores = score_pairs(checkpoint, pairs, dtype=config.dtype, max_tokens=config.max_tokens, journal=journal, advance=advance)
    for pair in np.flatnonzero(~np.isfinite(scores))[:1].tolist():
        pair_name = f"query {candidates.run.queries[query[pair]]!r} and document {candidates.run.document_ids[document[pair]]!r}"
        name = model if isinstance(model, Path) else "the reranker"  # a server tells no path
        raise DataError(f"{name}: its score of {pair_name} is not a finite number; check the weights, or try --dtype float32")
    if checkpoint is not model:
        checkpoint.log_truncation()
    return scores, counts


def score_pairs(
    checkpoint: RetrievalModel,
    pairs: PackedPairs,
    *,
    dtype: torch.dtype,
    max_tokens: int,
    journal: ScoreJournal | None = None,
    advance: Callable[[int], None] = lambda count: None,
) -> Scores:
    """Score of every pair [n], float32, longest pairs first. `journal` saves them; `advance` gets the number of new scores."""
    device, architecture = str(checkpoint.device), checkpoint.architecture.eval()
    order = np.argsort(-pairs.lengths, kind="stable")
    journal = journal or ScoreJournal(None, len(order))
    advance(journal.done)

    def score(tokens: PackedTokens) -> Scores:
        batch_scores: Scores = architecture(tokens.to(device))["relevance"].vectors[:, 0].cpu().numpy()
        return batch_scores

    with autocast(dtype, device):
        batches = prefetch(_pair_batches(pairs, order[journal.done :], max_tokens, device))
        for batch_scores in map_batches(score, batches, checkpoint.batches_at_once):
            journal.add(batch_scores)
            advance(len(batch_scores))
    scores = np.empty(len(order), dtype=np.float32)
    scores[order] = journal.close()
    return scores


def _pair_batches(pairs: PackedPairs, order: Numbers, max_tokens: int, device: str) -> Iterator[PackedTokens]:
    """Batches of consecutive pairs of at most `max_tokens` tokens, or of one pair."""
    for first, last in split_by_tokens(pairs.lengths[order].tolist(), max_tokens):
        tokens = pairs.pack(order[first:last]).sort_by_length()
        yield tokens.pin_memory() if device.startswith("cuda") else tokens


def select_experts(checkpoint: RetrievalModel, experts: Sequence[str], source: object) -> list[str]:
    """Experts whose scores are added: all, or those given; UsageError for an unknown one."""
    kinds = checkpoint.architecture.representation_kinds
    for name in experts:
        if name not in kinds:
            raise UsageError(f"--expert {name}: {source} has {', '.join(kinds)}")
    return [name for name in kinds if not experts or name in experts]


@torch.no_grad()
def _score_with_experts(
    checkpoint: RetrievalModel,
    experts: Sequence[str],
    candidates: Candidates,
    texts: CandidateTexts,
    config: ScoringConfig,
    journal: ScoreJournal,
    advance: Callable[[int], None],
) -> Scores:
    """Score of every candidate [n]: the sum of the scores of the experts, each in float32. A pair is scored when its document is read."""
    query, document = candidates.query, candidates.document
    documents = texts.iterate_documents(document, join_fields=False)
    scores, by_document = np.empty(len(query), dtype=np.float32), np.argsort(document, kind="stable")
    bounds = np.searchsorted(document[by_document], np.arange(int(document.max(initial=-1)) + 2))
    with autocast(config.dtype, str(checkpoint.device)):
        encoded_queries = checkpoint.encode(texts.queries, "query", max_tokens=config.max_tokens, experts=experts)
        done = 0
        while window := list(islice(documents, DOCUMENTS_PER_BATCH)):
            parts = [by_document[bounds[row] : bounds[row + 1]] for row, _ in window]
            pairs = np.concatenate(parts)
            document_rows = np.repeat(np.arange(len(window)), [len(part) for part in parts])
            if done >= journal.done:
                contents = [text for _, text in window]
                encoded_documents = checkpoint.encode(contents, "document", max_tokens=config.max_tokens, experts=experts)
                journal.add(_paired_scores(encoded_queries, encoded_documents, experts, query[pairs], document_rows))
            else:
                checkpoint.token_ids([text for _, text in window], "document")  # counts how many are cut
            scores[pairs] = journal.scores[done : done + len(pairs)]
            done += len(pairs)
            advance(len(pairs))
    journal.close()
    return scores


def _paired_scores(queries: EncoderOutput, documents: EncoderOutput, experts: Sequence[str], query: Numbers, document: Numbers) -> Scores:
    """Scores [n] of pairs (query row, document row)."""
    parts = []
    for first in range(0, len(query), PAIRS_PER_BATCH):
        rows = [torch.from_numpy(side[first : first + PAIRS_PER_BATCH]) for side in (query, document)]
        query_part, document_part = (
            side.select(row.to(side.tensors()[0].device)) for side, row in zip((queries, documents), rows, strict=True)
        )
        total = torch.stack([query_part[name].score_pairs(document_part[name]).float() for name in experts]).sum(0)
        parts.append(total.cpu().numpy())
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.float32)
