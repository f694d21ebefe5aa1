"""Indexes of the parts of a collection searched as one, with exactly the results of one index of all documents."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from moeir.errors import UsageError
from moeir.indexes.base import NO_ROW, Index, fill_ranked_hits


class ShardedIndex(Index):
    """Indexes of one expert over several parts, rows numbered consecutively; the top K of all are among the top K of each part."""

    kind: ClassVar[str] = ""

    def __init__(self, parts: Sequence[Index], id_ranks: np.ndarray) -> None:
        super().__init__(id_ranks)
        self.parts = list(parts)
        self._starts = np.cumsum([0, *map(len, parts)])
        self.kind = parts[0].kind  # type: ignore[misc]  # a class attribute of engines; here it comes from the parts
        self.exact = all(part.exact for part in parts)  # type: ignore[misc]
        self.score_if_not_found = parts[0].score_if_not_found  # type: ignore[misc]

    def __len__(self) -> int:
        return int(self._starts[-1])

    def find_part(self, row: int) -> tuple[Index, int]:
        """The index of a row, and the row in it."""
        part = int(np.searchsorted(self._starts, row, side="right")) - 1
        return self.parts[part], row - int(self._starts[part])

    def _search_into(self, queries: Any, depth: int, rows: np.ndarray, scores: np.ndarray) -> None:
        lists = [part.search(queries, depth) for part in self.parts]
        numbered = [
            np.where(part_rows == NO_ROW, NO_ROW, part_rows + start) for (part_rows, _), start in zip(lists, self._starts, strict=False)
        ]
        all_rows, values = np.concatenate(numbered, axis=1), np.concatenate([score for _, score in lists], axis=1)
        id_ranks = self.id_ranks
        for query in range(len(rows)):
            real = all_rows[query] != NO_ROW
            fill_ranked_hits(all_rows[query][real], values[query][real], id_ranks, rows[query], scores[query])

    def _score_pairs(self, queries: Any, query_rows: np.ndarray, document_rows: np.ndarray) -> np.ndarray:
        scores = np.empty(len(document_rows), dtype=np.float32)
        owners = np.searchsorted(self._starts, document_rows, side="right") - 1
        for number, part in enumerate(self.parts):
            own = np.flatnonzero(owners == number)
            scores[own] = part.score_pairs(queries, query_rows[own], document_rows[own] - self._starts[number])
        return scores

    def token_vectors(self, row: int) -> np.ndarray | None:
        part, own = self.find_part(row)
        return part.token_vectors(own)

    def add(self, shard: Any) -> None:
        raise UsageError("an index of several parts takes no documents")

    def _arrays(self) -> dict[str, np.ndarray]:
        raise UsageError("an index of several parts cannot be saved; index all encodings together")

    def _load_arrays(self, arrays: dict[str, np.ndarray], folder: Path, settings: dict[str, Any]) -> None:
        raise UsageError("an index of several parts cannot be opened as one; open each part")


def combine_indexes(parts: Sequence[Index], order: np.ndarray, expert: str) -> ShardedIndex:
    """Combine the parts; UsageError for engines whose scores depend on the whole collection."""
    if parts[0].kind == "text":
        raise UsageError(f"--index: {expert} weighs terms by how many documents of the whole collection have them; index it in one piece")
    return ShardedIndex(parts, order)
