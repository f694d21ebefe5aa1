"""What one checkpoint says of the candidates of a run: a cross-encoder of pairs, any other architecture by its experts."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from moeir.architectures.checkpoint import OpenCheckpoint, open_checkpoint
from moeir.backbones.pairs import Pairs
from moeir.reranking import crossing, experts
from moeir.reranking.candidates import Candidates
from moeir.reranking.ledger import Ledger, Scores
from moeir.reranking.library import Library
from moeir.reranking.passages import Passages


@dataclass(frozen=True)
class Manner:
    """How pairs are scored: precision, tokens at once, how long documents are cut, and the experts of what is no cross-encoder."""

    dtype: torch.dtype
    device: str = "cpu"
    max_tokens: int = 4096
    passages: Passages = field(default_factory=Passages)
    experts: tuple[str, ...] = ()


def scored(
    model: Path, candidates: Candidates, library: Library, manner: Manner, ledger: Ledger, name: str, advance: Callable[[int], None]
) -> tuple[Scores, dict[str, Any]]:
    """The scores of a checkpoint for all candidates [n], and how much that was."""
    checkpoint = open_checkpoint(model, manner.device)
    given: dict[str, Any] = {"dtype": manner.dtype, "max_tokens": manner.max_tokens, "ledger": ledger, "name": name}
    query, document = candidates.query, candidates.document
    if not checkpoint.architecture.pairs:
        taken = experts.chosen(checkpoint, manner.experts, model)
        walked = library.walked(document, fielded=False)
        found = experts.scored(checkpoint, taken, library.queries, walked, query, document, advance=advance, **given)
        return found, {"pairs": len(query), "experts": taken}
    pairs, starts = _pairs(checkpoint, candidates, library, manner.passages)
    told = _Told(advance, len(query), len(pairs.query))
    found = manner.passages.together(crossing.scored(checkpoint, pairs, advance=told, **given), starts)
    return found, {"pairs": len(query), "passages": len(pairs.query), "tokens": int(pairs.lengths.sum())}


def _pairs(checkpoint: OpenCheckpoint, candidates: Candidates, library: Library, passages: Passages) -> "tuple[Pairs, Any]":
    shelf = library.shelf(checkpoint, candidates.document, whole=passages.kind != "firstp")
    rows = shelf.rows[candidates.document]
    return passages.pairs(checkpoint.pairing, shelf.queries, shelf.documents, candidates.query, rows)


class _Told:
    """Passages that are done, told as pairs."""

    def __init__(self, advance: Callable[[int], None], pairs: int, passages: int) -> None:
        self._advance, self._pairs, self._passages, self._done, self._said = advance, pairs, passages, 0, 0

    def __call__(self, count: int) -> None:
        self._done += count
        reached = self._done * self._pairs // max(1, self._passages)
        self._advance(reached - self._said)
        self._said = reached
