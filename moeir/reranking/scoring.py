"""Scores of the documents of a run: by a cross-encoder, or exact ones by the experts of an architecture.

Cross-encoder: pairs sorted by length over all queries, in batches of a token budget, with prefetching.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from moeir.architectures.base import EncoderOutput
from moeir.architectures.checkpoint import RetrievalModel, open_checkpoint
from moeir.architectures.cross_encoder import PairTokenizer
from moeir.backbones.device import autocast
from moeir.backbones.packed_pairs import Numbers, PackedPairs, RaggedIds
from moeir.backbones.packed_tokens import PackedTokens
from moeir.backbones.prefetch import map_batches, prefetch
from moeir.errors import DataError, UsageError
from moeir.kernels.token_budget import split_by_tokens
from moeir.reranking.candidates import Candidates, CandidateTexts
from moeir.reranking.cascade import PASSAGE_MODES
from moeir.reranking.score_journal import ScoreJournal, ScoreLog, Scores

TOP_DOCUMENTS = 10  # documents that users look at
DOCUMENTS_PER_BATCH, PAIRS_PER_BATCH = 256, 512
AGGREGATIONS: dict[str, Callable[..., Numbers]] = dict(
    zip(PASSAGE_MODES, (np.add.reduceat, np.maximum.reduceat, np.add.reduceat), strict=True)
)


@dataclass(frozen=True)
class PassageSplitter:
    """Splits documents by `mode` into passages of at most `length` tokens (None: all that fit in a pair), one every `stride` tokens
    (None: half a passage). FirstP, MaxP and SumP of Dai and Callan 2019."""

    mode: str = "firstp"
    length: int | None = None
    stride: int | None = None

    def split_pairs(
        self, pairing: PairTokenizer, queries: RaggedIds, documents: RaggedIds, query: Numbers, document: Numbers
    ) -> tuple[PackedPairs, Numbers]:
        """The passages of pairs of rows [n], and starts [n]: passages starts[i] to starts[i + 1] are those of pair i."""
        make_pairs = partial(PackedPairs, pairing.template, queries, documents)
        sizes = documents.starts[document + 1] - documents.starts[document]
        windows = pairing.document_budget(queries, query)
        if self.length is not None:
            windows = np.minimum(windows, self.length)
        zeros = np.zeros(len(query), dtype=np.int64)
        if self.mode == "firstp":
            return make_pairs(query, document, zeros, np.minimum(sizes, windows)), np.arange(len(query))
        strides = np.maximum(windows // 2, 1) if self.stride is None else np.minimum(np.full(len(query), self.stride), windows)
        counts = 1 + np.maximum(0, -(-(sizes - windows) // strides))
        starts = np.cumsum(counts) - counts
        owners = np.repeat(np.arange(len(query)), counts)
        begins = (np.arange(len(owners)) - starts[owners]) * strides[owners]
        return make_pairs(query[owners], document[owners], begins, np.minimum(windows[owners], sizes[owners] - begins)), starts

    def aggregate(self, scores: Numbers, starts: Numbers) -> Numbers:
        """Aggregate passage scores to one score per pair [n]: the first, the maximum or the sum."""
        return np.asarray(AGGREGATIONS[self.mode](scores, starts)) if len(starts) else scores


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
    model: Path,
    candidates: Candidates,
    texts: CandidateTexts,
    config: ScoringConfig,
    journal: ScoreJournal,
    name: str,
    advance: Callable[[int], None],
) -> tuple[Scores, dict[str, Any]]:
    """Scores of a checkpoint for all candidates [n], NaN if skipped, and counts of the work."""
    checkpoint = open_checkpoint(model, config.device)
    checkpoint.pack_for_inference(config.dtype)
    query, document = candidates.query, candidates.document
    if not checkpoint.architecture.reads_pairs:
        if config.patience is not None:
            raise UsageError(f"--patience {config.patience}: is for cross-encoders, and {model} is none; leave it out")
        names = select_experts(checkpoint, config.experts, model)
        scores = _score_with_experts(checkpoint, names, candidates, texts, config, journal.open_log(name, len(query)), advance)
        _check_finite(model, candidates, scores, np.arange(len(query)))
        checkpoint.log_truncation()
        return scores, {"pairs": len(query), "experts": names}
    tokenized = texts.tokenize(checkpoint, document, whole=config.passages.mode != "firstp")
    scores, passages, tokens = np.full(len(query), np.nan, dtype=np.float32), 0, 0
    for number, part in enumerate(_early_exit_batches(candidates, scores, config.patience)):
        rows = (query[part], tokenized.rows[document[part]])
        pairs, starts = config.passages.split_pairs(checkpoint.pair_tokenizer, tokenized.queries, tokenized.documents, *rows)
        progress = _PairProgress(advance, len(part), len(pairs.query_rows))
        score_log = journal.open_log(name if config.patience is None else f"{name}.wave{number}", len(pairs.query_rows))
        passage_scores = score_pairs(
            checkpoint, pairs, dtype=config.dtype, max_tokens=config.max_tokens, score_log=score_log, advance=progress
        )
        scores[part] = config.passages.aggregate(passage_scores, starts)
        _check_finite(model, candidates, scores, part)
        passages, tokens = passages + len(pairs.query_rows), tokens + int(pairs.lengths.sum())
    checkpoint.log_truncation()
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
        self._advance, self._pairs, self._passages, self._done = advance, pairs, max(1, passages), 0

    def __call__(self, count: int) -> None:
        before, self._done = self._done, self._done + count
        self._advance(self._done * self._pairs // self._passages - before * self._pairs // self._passages)


def score_pairs(
    checkpoint: RetrievalModel,
    pairs: PackedPairs,
    *,
    dtype: torch.dtype,
    max_tokens: int,
    score_log: ScoreLog | None = None,
    advance: Callable[[int], None] = lambda count: None,
) -> Scores:
    """Score of every pair [n], float32, longest pairs first. `score_log` saves them; `advance` gets the number of new scores."""
    device, architecture = str(checkpoint.device), checkpoint.architecture.eval()
    order = np.argsort(-pairs.lengths, kind="stable")
    score_log = score_log or ScoreJournal(None).open_log("scores", len(order))
    advance(score_log.done)

    def score(tokens: PackedTokens) -> Scores:
        batch_scores: Scores = architecture(tokens.to(device))["relevance"].vectors[:, 0].cpu().numpy()
        return batch_scores

    with autocast(dtype, device):
        batches = prefetch(_pair_batches(pairs, order[score_log.done :], max_tokens, device))
        for batch_scores in map_batches(score, batches, checkpoint.batches_at_once):
            score_log.add(batch_scores)
            advance(len(batch_scores))
    scores = np.empty(len(order), dtype=np.float32)
    scores[order] = score_log.close()
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
    score_log: ScoreLog,
    advance: Callable[[int], None],
) -> Scores:
    """Score of every candidate [n]: the sum of the scores of the experts, each in float32. A pair is scored when its document is read."""
    query, document = candidates.query, candidates.document
    documents = texts.iter_documents(document, join_fields=False)
    scores, by_document = np.empty(len(query), dtype=np.float32), np.argsort(document, kind="stable")
    bounds = np.searchsorted(document[by_document], np.arange(int(document.max(initial=-1)) + 2))
    with autocast(config.dtype, str(checkpoint.device)):
        encoded_queries = checkpoint.encode(texts.queries, "query", max_tokens=config.max_tokens, experts=experts)
        done = 0
        while window := list(islice(documents, DOCUMENTS_PER_BATCH)):
            parts = [by_document[bounds[row] : bounds[row + 1]] for row, _ in window]
            pairs = np.concatenate(parts)
            document_rows = np.repeat(np.arange(len(window)), [len(part) for part in parts])
            if done >= score_log.done:
                contents = [text for _, text in window]
                encoded_documents = checkpoint.encode(contents, "document", max_tokens=config.max_tokens, experts=experts)
                score_log.add(_paired_scores(encoded_queries, encoded_documents, experts, query[pairs], document_rows))
            else:
                checkpoint.token_ids([text for _, text in window], "document")  # counts how many are cut
            scores[pairs] = score_log.scores[done : done + len(pairs)]
            done += len(pairs)
            advance(len(pairs))
    score_log.close()
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
