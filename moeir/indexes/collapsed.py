"""Search for documents in an index of their passages."""

import math
from typing import Any

import numpy as np

from moeir.indexes.base import NO_ROW, SearchableIndex, fill_ranked_hits
from moeir.indexes.exact_sum import select_queries
from moeir.indexes.subset import GROWTH, HITS_AT_ONCE, SPARE_HITS, SPARE_SHARE


class CollapsedIndex(SearchableIndex):
    """Documents that score as their best passage: exactly the ranking of all passages, collapsed. MaxP of Dai and Callan 2019.

    `documents` int64 [n] is the row of each passage's document, each of 0 to N - 1. The index of passages is searched deeper until every
    query has enough documents whose scores are above that of its last passage.
    """

    def __init__(self, index: SearchableIndex, documents: np.ndarray, id_ranks: np.ndarray) -> None:
        super().__init__(id_ranks)
        self._index, self._documents = index, documents
        self._passages = np.argsort(documents, kind="stable")  # those of each document, one after the other
        self._starts = np.searchsorted(documents[self._passages], np.arange(len(id_ranks) + 1))
        self.kind, self.exact, self.score_if_not_found = index.kind, index.exact, index.score_if_not_found

    def __len__(self) -> int:
        return len(self._starts) - 1

    def _search_into(self, queries: Any, depth: int, rows: np.ndarray, scores: np.ndarray) -> None:
        deeper, pending = math.ceil(depth * len(self._index) / len(self) * SPARE_SHARE) + SPARE_HITS, np.arange(len(rows))
        while len(pending):
            step, incomplete = max(1, HITS_AT_ONCE // min(deeper, len(self._index))), list[int]()
            for part in np.split(pending, range(step, len(pending), step)):
                passages, values = self._index.search(select_queries(queries, part), deeper)
                for query, hits, hit_scores in zip(part.tolist(), passages, values, strict=True):
                    documents, first = np.unique(self._documents[hits[hits != NO_ROW]], return_index=True)
                    is_whole = hits[-1] == NO_ROW or deeper >= len(self._index)
                    if is_whole or (hit_scores[first] > hit_scores[-1]).sum() >= depth:
                        fill_ranked_hits(documents, hit_scores[first], self.id_ranks, rows[query], scores[query])
                    else:
                        incomplete.append(query)
            pending, deeper = np.array(incomplete, dtype=np.int64), deeper * GROWTH

    def _score_pairs(self, queries: Any, query_rows: np.ndarray, document_rows: np.ndarray) -> np.ndarray:
        counts = np.diff(self._starts)[document_rows]
        begins = np.cumsum(counts) - counts
        passages = self._passages[np.arange(counts.sum()) + np.repeat(self._starts[document_rows] - begins, counts)]
        best: np.ndarray = np.maximum.reduceat(self._index.score_pairs(queries, np.repeat(query_rows, counts), passages), begins)
        return best
