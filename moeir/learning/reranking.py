"""How a cross-encoder is judged while it learns: a run of development queries, its first documents scored again."""

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import numpy as np
import torch

from moeir.architectures.checkpoint import OpenCheckpoint
from moeir.backbones.pairs import Ragged
from moeir.errors import DataError
from moeir.learning.distributed import ALONE, World
from moeir.records import runs
from moeir.records.runs import Run
from moeir.records.texts import Text
from moeir.reranking import crossing
from moeir.reranking.candidates import Candidates

TOKENS_AT_ONCE = 4096


def candidates(path: Path, queries: Collection[str], depth: int) -> Run:
    """The first `depth` documents of these queries in a run; DataError if it holds none of them."""
    found = runs.read(path)
    kept = Run.from_hits({query: found.hits(query) for query in found.queries if query in queries}).top(depth)
    if not kept.queries:
        raise DataError(f"{path}: holds none of the judged development queries; do the ids agree?")
    return kept


def documents(read: Iterable[Text], run: Run, refusal: str) -> dict[str, str]:
    """The documents of a run, their parts apart; DataError with `refusal` for one that is not among those read."""
    names = set(run.names)
    held = {text.id: text.fielded for text in read if text.id in names}
    for name in run.names:
        if name not in held:
            raise DataError(refusal.format(name))
    return held


def reranked(
    checkpoint: OpenCheckpoint, run: Run, queries: Mapping[str, str], documents: Mapping[str, str], dtype: torch.dtype, world: World = ALONE
) -> Run:
    """A run by the scores of a cross-encoder; each process of `world` scores its part, and all get the run."""
    chosen = Candidates.of(run, len(run.documents))
    ids, rows = np.unique(chosen.document, return_inverse=True)
    texts = [documents[run.names[code]] for code in ids.tolist()]
    pairing = checkpoint.pairing
    held = [Ragged.of(pairing.ids(side, name)) for name, side in (("query", [queries[one] for one in run.queries]), ("document", texts))]
    own = np.arange(world.rank, len(chosen), world.size)
    pairs = pairing.joined(*held, chosen.query[own], rows[own])
    scores = torch.from_numpy(crossing.scored(checkpoint, pairs, dtype=dtype, max_tokens=TOKENS_AT_ONCE)).to(checkpoint.device)
    total = np.empty(len(chosen), dtype=np.float32)
    everywhere = [[scores]] if world.size == 1 else world.all_of([scores], "the development set")
    for rank, (part,) in enumerate(everywhere):
        total[rank :: world.size] = part.cpu().numpy()
    return chosen.reranked(total)
