"""Learned-sparse search by Lucene over whole-number impacts, through Anserini's jar."""

from collections.abc import Iterator
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from moeir.artifacts.array_folder import ArrayFolder
from moeir.indexes.base import Index
from moeir.indexes.lucene import Lucene, java_command
from moeir.indexes.sparse_rows import SparseShards, query_rows

MAX_IMPACT = 255  # largest impact in a document
MAX_REPEATS = 100  # repetitions of a query's strongest term


class LuceneImpact(Lucene, Index):
    """Learned-sparse search by Lucene over 8-bit impacts, through Anserini (extra `lucene`); not exact.

    A document's weight is rounded to one of 255 steps up to the largest of all, a query's to one of 100 steps up to its own largest.
    Scores are returned in the scale of the weights.
    """

    kind = "sparse"
    exact = False
    _index_flags = ("-collection", "JsonVectorCollection", "-impact", "-pretokenized")
    _search_flags = ("-impact", "-pretokenized")

    def __init__(self, id_ranks: np.ndarray | None = None, device: str = "cpu") -> None:
        Index.__init__(self, id_ranks, device)
        self._shards = SparseShards()
        self._java = java_command()

    def _add(self, shard: Any) -> None:
        self._shards.add(shard)

    def _json_documents(self) -> Iterator[dict[str, Any]]:
        rows, scale = count(), MAX_IMPACT / (self._max_weight() or 1.0)
        for starts, terms, weights in self._shards.blocks():
            impacts = np.rint(weights * scale).astype(np.int64).clip(0)
            for begin, end in pairwise(starts):
                pairs = zip(terms[begin:end], impacts[begin:end].tolist(), strict=True)
                yield {"id": str(next(rows)), "contents": "", "vector": {f"t{term}": impact for term, impact in pairs if impact}}

    def _max_weight(self) -> float:
        return float(self._shards.max_weights.max(initial=0.0))

    def _write(self, folder: Path) -> dict[str, Any]:
        return {**super()._write(folder), "vocabulary": self._shards.vocabulary, "highest": self._max_weight()}

    def _load(self, arrays: ArrayFolder, folder: Path, settings: dict[str, Any]) -> int:
        self._vocabulary, self._highest = settings["vocabulary"], settings["highest"]
        return super()._load(arrays, folder, settings)

    def _query_lines(self, queries: Any) -> list[tuple[str, float]]:
        starts, terms, weights = query_rows(queries, self._vocabulary)
        query_lines = []
        for begin, end in pairwise(starts):
            highest = float(weights[begin:end].max(initial=0.0))
            repeats = np.rint(weights[begin:end] * (MAX_REPEATS / (highest or 1.0))).astype(np.int64).clip(0)
            tokens = [" ".join([f"t{term}"] * count) for term, count in zip(terms[begin:end], repeats.tolist(), strict=True) if count]
            query_lines.append((" ".join(tokens), highest * self._highest / (MAX_REPEATS * MAX_IMPACT)))
        return query_lines
