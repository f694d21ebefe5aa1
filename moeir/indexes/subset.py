"""Search among some documents of an index: those that are not deleted, or those of a filter; or for the documents of its passages."""

import math
from typing import Any

import numpy as np

from moeir.indexes.base import NO_ROW, SearchableIndex, fill_ranked_hits
from moeir.indexes.exact_sum import select_queries

HITS_AT_ONCE = 2**22  # of the queries that are searched or scored together
SPARE_SHARE, SPARE_HITS, GROWTH = 1.1, 16, 4  # how much deeper than an even spread of the documents needs, and then each time again


class SubsetIndex(SearchableIndex):
    """The documents `rows` int64 [n] of an index, ascending, numbered consecutively: exactly the results of an index of them alone.

    The index is searched deeper until enough of the documents are among the hits of every query; where the search would be deeper than
    there are documents, these are scored pair by pair. An approximate engine is only searched deeper, at most for all of its documents.
    """

    def __init__(self, index: SearchableIndex, rows: np.ndarray, id_ranks: np.ndarray) -> None:
        super().__init__(id_ranks)
        if isinstance(index, SubsetIndex):
            index, rows = index._index, index._rows[rows]
        self._index, self._rows = index, rows
        self._positions = np.full(len(index), NO_ROW, dtype=np.int64)  # of each row among `rows`
        self._positions[rows] = np.arange(len(rows))
        self.kind, self.exact, self.score_if_not_found = index.kind, index.exact, index.score_if_not_found

    def __len__(self) -> int:
        return len(self._rows)

    def _search_into(self, queries: Any, depth: int, rows: np.ndarray, scores: np.ndarray) -> None:
        deeper = math.ceil(depth * len(self._index) / len(self) * SPARE_SHARE) + SPARE_HITS
        pending = np.arange(len(rows))
        while len(pending):
            search = self._score_documents if self.exact and deeper >= len(self) else self._search_deeper
            step = max(1, HITS_AT_ONCE // min(deeper, len(self._index)))
            parts = [pending[first : first + step] for first in range(0, len(pending), step)]
            pending = np.concatenate([part[~search(queries, part, depth, deeper, rows, scores)] for part in parts])
            deeper *= GROWTH

    def _search_deeper(
        self, queries: Any, query_rows: np.ndarray, depth: int, deeper: int, rows: np.ndarray, scores: np.ndarray
    ) -> np.ndarray:
        """Fill the results of some queries from deeper lists; which of them are complete, bool [q]."""
        hits, values = self._index.search(select_queries(queries, query_rows), deeper)
        positions = np.where(hits == NO_ROW, NO_ROW, self._positions[hits])
        is_hit = positions != NO_ROW
        is_complete: np.ndarray = (is_hit.sum(1) >= depth) | (hits[:, -1] == NO_ROW) | (deeper >= len(self._index))
        for i in np.flatnonzero(is_complete).tolist():
            fill_ranked_hits(positions[i][is_hit[i]], values[i][is_hit[i]], self.id_ranks, rows[query_rows[i]], scores[query_rows[i]])
        return is_complete

    def _score_documents(
        self, queries: Any, query_rows: np.ndarray, depth: int, deeper: int, rows: np.ndarray, scores: np.ndarray
    ) -> np.ndarray:
        """Fill the results of some queries from the scores of all documents; all of them are complete."""
        count, wanted = len(query_rows), select_queries(queries, query_rows)
        every = np.arange(len(self))
        values = self.score_pairs(wanted, np.repeat(np.arange(count), len(self)), np.tile(every, count)).reshape(count, len(self))
        for i in range(count):
            if values[i].any() or self._finds_any(select_queries(wanted, np.array([i]))):
                hits = np.flatnonzero(values[i] != self.score_if_not_found)
                fill_ranked_hits(hits, values[i][hits], self.id_ranks, rows[query_rows[i]], scores[query_rows[i]])
        return np.ones(count, dtype=bool)

    def _finds_any(self, query: Any) -> bool:
        """Whether a query that scores 0 with every document retrieves any: one without tokens does not."""
        return bool(self._index.search(query, 1)[0][0, 0] != NO_ROW)

    def _score_pairs(self, queries: Any, query_rows: np.ndarray, document_rows: np.ndarray) -> np.ndarray:
        return self._index.score_pairs(queries, query_rows, self._rows[document_rows])

    def expect_many_queries(self) -> None:
        self._index.expect_many_queries()

    def token_vectors(self, row: int) -> np.ndarray | None:
        return self._index.token_vectors(int(self._rows[row]))


class CollapsedIndex(SearchableIndex):
    """Documents that score as the best of their passages: exactly the ranking of all passages, collapsed. MaxP of Dai and Callan 2019.

    `documents` int64 [n] has the row of each passage's document. Passages are searched deeper until enough documents score above the last.
    """

    def __init__(self, index: SearchableIndex, documents: np.ndarray, id_ranks: np.ndarray) -> None:
        super().__init__(id_ranks)
        self._index, self._documents, self._passages = index, documents, np.argsort(documents, kind="stable")
        self._starts = np.searchsorted(documents[self._passages], np.arange(len(id_ranks) + 1))
        self.kind, self.exact, self.score_if_not_found = index.kind, index.exact, index.score_if_not_found

    def __len__(self) -> int:
        return len(self._starts) - 1

    def _search_into(self, queries: Any, depth: int, rows: np.ndarray, scores: np.ndarray) -> None:
        deeper, pending = math.ceil(depth * len(self._index) / len(self) * SPARE_SHARE) + SPARE_HITS, list(range(len(rows)))
        while pending:
            part, pending = np.array(pending), []
            for some in np.array_split(part, -(-len(part) * min(deeper, len(self._index)) // HITS_AT_ONCE)):
                for query, hits, values in zip(some.tolist(), *self._index.search(select_queries(queries, some), deeper), strict=True):
                    documents, first = np.unique(self._documents[hits[hits != NO_ROW]], return_index=True)  # each at its best passage
                    if hits[-1] == NO_ROW or deeper >= len(self._index) or (values[first] > values[-1]).sum() >= depth:
                        fill_ranked_hits(documents, values[first], self.id_ranks, rows[query], scores[query])
                    else:
                        pending.append(query)
            deeper *= GROWTH

    def expect_many_queries(self) -> None:
        self._index.expect_many_queries()

    def _score_pairs(self, queries: Any, query_rows: np.ndarray, document_rows: np.ndarray) -> np.ndarray:
        counts = np.diff(self._starts)[document_rows]
        begins = np.cumsum(counts) - counts
        passages = self._passages[np.arange(counts.sum()) + np.repeat(self._starts[document_rows] - begins, counts)]
        return np.asarray(np.maximum.reduceat(self._index.score_pairs(queries, np.repeat(query_rows, counts), passages), begins))
