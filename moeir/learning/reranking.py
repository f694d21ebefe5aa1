"""Development sets: queries, documents and judgements, reranked by a cross-encoder or searched exactly during training; the best value."""

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
    full_run = runs.read(path)
    candidate_run = Run.from_hits({query: full_run.hits(query) for query in full_run.queries if query in queries}).top(depth)
    if not candidate_run.queries:
        raise DataError(f"{path}: holds none of the judged development queries; do the ids agree?")
    return candidate_run


def documents(read: Iterable[Text], run: Run, refusal: str) -> dict[str, str]:
    """The documents of a run, with title and text apart; DataError with `message` for one that the corpus lacks."""
    names = set(run.names)
    texts_by_id = {text.id: text.fielded for text in read if text.id in names}
    for name in run.names:
        if name not in texts_by_id:
            raise DataError(refusal.format(name))
    return texts_by_id


def reranked(
    checkpoint: OpenCheckpoint, run: Run, queries: Mapping[str, str], documents: Mapping[str, str], dtype: torch.dtype, world: World = ALONE
) -> Run:
    """A run reranked by a cross-encoder; each process scores its part, and all get the whole run."""
    pool = Candidates.of(run, len(run.documents))
    ids, rows = np.unique(pool.document, return_inverse=True)
    texts = [documents[run.names[code]] for code in ids.tolist()]
    pairing = checkpoint.pairing
    query_and_document_ids = [
        Ragged.of(pairing.ids(side, name)) for name, side in (("query", [queries[one] for one in run.queries]), ("document", texts))
    ]
    own_rows = np.arange(world.rank, len(pool), world.size)
    pairs = pairing.joined(*query_and_document_ids, pool.query[own_rows], rows[own_rows])
    scores = torch.from_numpy(crossing.scored(checkpoint, pairs, dtype=dtype, max_tokens=TOKENS_AT_ONCE)).to(checkpoint.device)
    all_scores = np.empty(len(pool), dtype=np.float32)
    parts_by_rank = [[scores]] if world.size == 1 else world.all_of([scores], "the development set")
    for rank, (part,) in enumerate(parts_by_rank):
        all_scores[rank :: world.size] = part.cpu().numpy()
    return pool.reranked(all_scores)
