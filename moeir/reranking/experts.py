"""Experts of an architecture as rerankers: exact scores of the documents of a run."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import numpy as np
import torch

from moeir.architectures.base import EncoderOutput
from moeir.architectures.checkpoint import RetrievalModel
from moeir.backbones.pairs import Numbers
from moeir.backbones.precision import autocast
from moeir.errors import UsageError
from moeir.reranking.ledger import ScoreJournal, Scores

DOCUMENTS_PER_BATCH, PAIRS_PER_BATCH = 256, 512


def select_experts(checkpoint: RetrievalModel, experts: Sequence[str], source: object) -> list[str]:
    """Experts whose scores are added: all, or those given; UsageError for an unknown one."""
    kinds = checkpoint.architecture.representation_kinds
    for name in experts:
        if name not in kinds:
            raise UsageError(f"--expert {name}: {source} has {', '.join(kinds)}")
    return [name for name in kinds if not experts or name in experts]


@torch.no_grad()
def score_with_experts(
    checkpoint: RetrievalModel,
    experts: Sequence[str],
    queries: Sequence[str],
    documents: Iterator[tuple[int, str]],
    query: Numbers,
    document: Numbers,
    *,
    dtype: torch.dtype,
    max_tokens: int,
    journal: ScoreJournal | None = None,
    name: str = "scores",
    advance: Callable[[int], None] = lambda count: None,
) -> Scores:
    """Score of every pair of rows [n], float32: the sum of the scores of the experts, each in float32.

    `documents` are rows with texts, each once, in a fixed order; a pair is scored when its document arrives.
    """
    device = str(checkpoint.device)
    score_log = (ScoreJournal(None) if journal is None else journal).open_log(name, len(query))
    scores, by_document = np.empty(len(query), dtype=np.float32), np.argsort(document, kind="stable")
    bounds = np.searchsorted(document[by_document], np.arange(int(document.max(initial=-1)) + 2))
    with autocast(dtype, device):
        encoded_queries = checkpoint.encode(queries, "query", max_tokens=max_tokens)
        done = 0
        while window := list(islice(documents, DOCUMENTS_PER_BATCH)):
            parts = [by_document[bounds[row] : bounds[row + 1]] for row, _ in window]
            pairs = np.concatenate(parts)
            document_rows = np.repeat(np.arange(len(window)), [len(part) for part in parts])
            if done >= score_log.done:
                encoded_documents = checkpoint.encode([text for _, text in window], "document", max_tokens=max_tokens)
                score_log.add(_paired_scores(encoded_queries, encoded_documents, experts, query[pairs], document_rows))
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
