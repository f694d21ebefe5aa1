"""An architecture's own experts as rerankers: exact scores of the documents of a run, whatever their index would have found."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import numpy as np
import torch

from moeir.architectures.base import Encoded
from moeir.architectures.checkpoint import OpenCheckpoint
from moeir.backbones.pairs import Numbers
from moeir.backbones.precision import autocast
from moeir.errors import UsageError
from moeir.reranking.ledger import Ledger, Scores

DOCUMENTS_AT_ONCE, PAIRS_AT_ONCE = 256, 512


def chosen(checkpoint: OpenCheckpoint, experts: Sequence[str], place: object) -> list[str]:
    """The experts whose scores are added: all, or those named; UsageError for one that is not there."""
    kinds = checkpoint.architecture.kinds
    for name in experts:
        if name not in kinds:
            raise UsageError(f"--expert {name}: {place} has {', '.join(kinds)}")
    return [name for name in kinds if not experts or name in experts]


@torch.no_grad()
def scored(
    checkpoint: OpenCheckpoint,
    experts: Sequence[str],
    queries: Sequence[str],
    documents: Iterator[tuple[int, str]],
    query: Numbers,
    document: Numbers,
    *,
    dtype: torch.dtype,
    max_tokens: int,
    ledger: Ledger | None = None,
    name: str = "scores",
    advance: Callable[[int], None] = lambda count: None,
) -> Scores:
    """The score of every pair of rows [n], float32: those of the experts added up, each in float32.

    `documents` are rows with their texts, each once, in an order that is always the same; a pair is scored when its document comes.
    """
    device = str(checkpoint.device)
    walk = (Ledger(None) if ledger is None else ledger).opened(name, len(query))
    found, owners = np.empty(len(query), dtype=np.float32), np.argsort(document, kind="stable")
    bounds = np.searchsorted(document[owners], np.arange(int(document.max(initial=-1)) + 2))
    with autocast(dtype, device):
        asked = checkpoint.encode(queries, "query", max_tokens=max_tokens)
        passed = 0
        while window := list(islice(documents, DOCUMENTS_AT_ONCE)):
            parts = [owners[bounds[row] : bounds[row + 1]] for row, _ in window]
            pairs = np.concatenate(parts)
            places = np.repeat(np.arange(len(window)), [len(part) for part in parts])
            if passed >= walk.done:
                told = checkpoint.encode([text for _, text in window], "document", max_tokens=max_tokens)
                walk.add(_paired(asked, told, experts, query[pairs], places))
            found[pairs] = walk.scores[passed : passed + len(pairs)]
            passed += len(pairs)
            advance(len(pairs))
    walk.close()
    return found


def _paired(queries: Encoded, documents: Encoded, experts: Sequence[str], query: Numbers, document: Numbers) -> Scores:
    """[n] of each query row with each document row."""
    parts = []
    for first in range(0, len(query), PAIRS_AT_ONCE):
        rows = [torch.from_numpy(side[first : first + PAIRS_AT_ONCE]) for side in (query, document)]
        asked, told = (side.select(row.to(side.tensors()[0].device)) for side, row in zip((queries, documents), rows, strict=True))
        total = torch.stack([asked[name].paired(told[name]).float() for name in experts]).sum(0)
        parts.append(total.cpu().numpy())
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.float32)
