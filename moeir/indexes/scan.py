"""Search of any kind of representation by scoring every document, without an index structure."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from moeir.artifacts.array_folder import ArrayFolder
from moeir.errors import ArtifactError, DataError
from moeir.indexes.base import Index, fill_ranked_hits
from moeir.representations.base import Representation, RepresentationWriter, representation_class

DOCUMENTS_AT_ONCE = 1024


class Scan(Index):
    """Exact search of any representation by its own scores, every query with every document on the processor: for small collections."""

    kind = "any"

    def __init__(self, id_ranks: np.ndarray | None = None, device: str = "cpu") -> None:
        super().__init__(id_ranks, device)
        self._shards: list[Representation] = []
        self._documents: Representation | None = None

    def _add(self, shard: Representation) -> None:
        if self._shards and shard.kind != self.kind:
            raise ArtifactError(f"{shard.kind} representations, but the index holds {self.kind} ones: made by another checkpoint?")
        self.kind = shard.kind
        self._shards.append(shard)

    def _write(self, folder: Path) -> dict[str, Any]:
        """Write the files of the representation."""
        writer = RepresentationWriter(folder)
        for shard in self._shards:
            writer.append(shard)
        writer.close()
        return {}

    def _load(self, arrays: ArrayFolder, folder: Path, settings: dict[str, Any]) -> int:
        if not settings["documents"]:
            return 0
        self.kind, self._documents = settings["kind"], representation_class(settings["kind"]).open(folder)
        self.score_if_not_found = 0.0 if self._documents.positive_scores_only else -np.inf
        return len(self._documents)

    def _scores(self, queries: Representation, row: int) -> np.ndarray:
        """Scores of one query with every document: float32 [N]."""
        query = queries.select(torch.tensor([row], device=queries.device)).map(lambda column: column.detach().cpu())
        assert self._documents is not None
        blocks = map(self._documents.select, torch.arange(len(self)).split(DOCUMENTS_AT_ONCE))
        scores: np.ndarray = torch.cat([query.scores(block)[0] for block in blocks]).numpy()
        if not (scores < np.inf).all():
            raise DataError(f"query {row}: NaN, infinity, or a score too large for float32")
        return scores

    def _search_into(self, queries: Any, depth: int, rows: np.ndarray, scores: np.ndarray) -> None:
        id_ranks = self.id_ranks
        for query in range(len(queries)):
            values = self._scores(queries, query)
            hits = np.flatnonzero(values > self.score_if_not_found)
            fill_ranked_hits(hits, values[hits], id_ranks, rows[query], scores[query])

    def _score_pairs(self, queries: Any, query_rows: np.ndarray, document_rows: np.ndarray) -> np.ndarray:
        scores = np.empty(len(query_rows), dtype=np.float32)
        for query in np.unique(query_rows).tolist():
            own = query_rows == query
            scores[own] = np.maximum(self._scores(queries, query)[document_rows[own]], self.score_if_not_found)
        return scores
