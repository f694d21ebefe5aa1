"""Learned-sparse search by Lucene over whole-number impacts, through Anserini's jar."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from moeir.indexes.base import Index
from moeir.indexes.inverted import ROWS_AT_ONCE, check_vocabulary, sparse_rows
from moeir.indexes.lucene import Lucene

MAX_IMPACT = 255  # largest impact in a document
MAX_REPEATS = 100  # repetitions of a query's strongest term


class LuceneImpact(Lucene, Index):
    """Learned-sparse search by Lucene over 8-bit impacts, through Anserini (extra `lucene`); not exact.

    A document's weight is rounded to one of 255 steps up to the largest of all, a query's to one of 100 steps up to its own largest.
    Scores are returned in the scale of the weights.
    """

    kind: ClassVar[str] = "sparse"
    exact: ClassVar[bool] = False

    def __init__(self, id_ranks: np.ndarray | None = None, device: str = "cpu") -> None:
        Index.__init__(self, id_ranks, device)
        self.vocabulary: int | None = None
        self._shards: list[Any] = []
        self._max_weight = 0.0
        self._init_state()

    def _add_documents(self, shard: Any) -> None:
        check_vocabulary(shard, self.vocabulary)
        for first in range(0, len(shard), ROWS_AT_ONCE):
            texts = sparse_rows(shard, first, min(first + ROWS_AT_ONCE, len(shard)), len(self), "row")
            self._max_weight = max(self._max_weight, float(texts.weights.max(initial=0.0)))
        self.vocabulary = shard.vocabulary
        self._shards.append(shard)

    def _json_documents(self) -> Iterator[dict[str, Any]]:
        row, scale = 0, MAX_IMPACT / (self._max_weight or 1.0)
        for shard in self._shards:
            first_row = row
            for first in range(0, len(shard), ROWS_AT_ONCE):
                starts, terms, weights = sparse_rows(shard, first, min(first + ROWS_AT_ONCE, len(shard)), first_row, "row")
                impacts = np.rint(weights * scale).astype(np.int64).clip(0)
                for begin, end in pairwise(starts):
                    pairs = zip(terms[begin:end], impacts[begin:end].tolist(), strict=True)
                    impacts_by_term = {f"t{term}": impact for term, impact in pairs if impact}
                    yield {"id": str(row), "contents": "", "vector": impacts_by_term}
                    row += 1

    def _index_flags(self) -> list[str]:
        return ["-collection", "JsonVectorCollection", "-impact", "-pretokenized"]

    def _search_flags(self) -> list[str]:
        return ["-impact", "-pretokenized"]

    def _query_lines(self, queries: Any) -> list[tuple[str, float]]:
        check_vocabulary(queries, self.vocabulary)
        starts, terms, weights = sparse_rows(queries, 0, len(queries), 0, "query")
        query_lines = []
        for begin, end in pairwise(starts):
            highest = float(weights[begin:end].max(initial=0.0))
            repeats = np.rint(weights[begin:end] * (MAX_REPEATS / (highest or 1.0))).astype(np.int64).clip(0)
            tokens = [" ".join([f"t{term}"] * count) for term, count in zip(terms[begin:end], repeats.tolist(), strict=True) if count]
            query_lines.append((" ".join(tokens), highest * self._max_weight / (MAX_REPEATS * MAX_IMPACT)))
        return query_lines

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "vocabulary": self.vocabulary, "highest": self._max_weight}

    def _load_arrays(self, arrays: dict[str, np.ndarray], folder: Path, settings: dict[str, Any]) -> None:
        super()._load_arrays(arrays, folder, settings)
        self.vocabulary, self._max_weight = settings["vocabulary"], settings["highest"]
