"""Development sets: queries, documents and judgements, reranked by a cross-encoder or searched exactly during training; the best value."""

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import numpy as np
import torch

from moeir.architectures.checkpoint import RetrievalModel
from moeir.backbones.pairs import RaggedIds
from moeir.errors import DataError
from moeir.learning.distributed import SINGLE_PROCESS, ProcessGroup
from moeir.records import runs
from moeir.records.runs import Run
from moeir.records.texts import Text
from moeir.reranking import crossing
from moeir.reranking.candidates import Candidates

MAX_TOKENS = 4096


def read_candidates(path: Path, queries: Collection[str], depth: int) -> Run:
    """The first `depth` documents of these queries in a run; DataError if it holds none of them."""
    full_run = runs.read_run(path)
    candidate_run = Run.from_hits({query: full_run.hits(query) for query in full_run.queries if query in queries}).top(depth)
    if not candidate_run.queries:
        raise DataError(f"{path}: holds none of the judged development queries; do the ids agree?")
    return candidate_run


def collect_documents(corpus: Iterable[Text], run: Run, message: str) -> dict[str, str]:
    """The documents of a run, with title and text apart; DataError with `message` for one that the corpus lacks."""
    names = set(run.document_ids)
    texts_by_id = {text.id: text.joined_fields for text in corpus if text.id in names}
    for name in run.document_ids:
        if name not in texts_by_id:
            raise DataError(message.format(name))
    return texts_by_id


def rerank_candidates(
    checkpoint: RetrievalModel, run: Run, queries: Mapping[str, str], documents: Mapping[str, str], dtype: torch.dtype, process_group: ProcessGroup = SINGLE_PROCESS
) -> Run:
    """A run reranked by a cross-encoder; each process scores its part, and all get the whole run."""
    pool = Candidates.from_run(run, len(run.documents))
    ids, rows = np.unique(pool.document, return_inverse=True)
    texts = [documents[run.document_ids[code]] for code in ids.tolist()]
    pairing = checkpoint.pair_tokenizer
    query_and_document_ids = [
        RaggedIds.from_lists(pairing.token_ids(side, name)) for name, side in (("query", [queries[one] for one in run.queries]), ("document", texts))
    ]
    own_rows = np.arange(process_group.rank, len(pool), process_group.size)
    pairs = pairing.make_pairs(*query_and_document_ids, pool.query[own_rows], rows[own_rows])
    scores = torch.from_numpy(crossing.score_pairs(checkpoint, pairs, dtype=dtype, max_tokens=MAX_TOKENS)).to(checkpoint.device)
    all_scores = np.empty(len(pool), dtype=np.float32)
    parts_by_rank = [[scores]] if process_group.size == 1 else process_group.all_gather([scores], "the development set")
    for rank, (part,) in enumerate(parts_by_rank):
        all_scores[rank :: process_group.size] = part.cpu().numpy()
    return pool.apply_scores(all_scores)
