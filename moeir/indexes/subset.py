"""Search for some documents of an index, as those of a filter, or for the documents of its passages."""

import logging
import math
from collections.abc import Collection, Container
from typing import Any

import numpy as np

from moeir.errors import DataError
from moeir.indexes.base import NO_ROW, SearchableIndex, fill_ranked_hits
from moeir.indexes.exact_sum import select_queries

HITS_AT_ONCE = 2**22  # of the queries that are searched or scored together
SPARE_SHARE, SPARE_HITS, GROWTH = 1.1, 16, 4  # how much deeper than an even spread of the documents needs, and then each time again
log = logging.getLogger(__name__)


class SubsetIndex(SearchableIndex):
    """Documents that are rows of an index, or score as the best of several, their passages (MaxP of Dai and Callan 2019).

    `documents` int64 [len(index)] has the document of each row, NO_ROW for one that is left out; `id_ranks` are those of the documents,
    each of which has a row, and in the order of the rows' if each has only one. The ranking is exactly that of all rows, filtered and
    collapsed.

    The index is searched deeper until enough documents are among the hits of every query, and above the last one if they have several
    rows; where that is deeper than the number of rows of a filter, these are scored pair by pair. An approximate engine is only searched
    deeper, at most for all of its rows.
    """

    def __init__(self, index: SearchableIndex, documents: np.ndarray, id_ranks: np.ndarray) -> None:
        super().__init__(id_ranks)
        if isinstance(index, SubsetIndex):
            index, documents = index._index, np.append(documents, NO_ROW)[index._documents]
        self._index, self._documents = index, documents
        self._rows = np.argsort(documents, kind="stable")[np.count_nonzero(documents == NO_ROW) :]  # by document
        self._starts = np.searchsorted(documents[self._rows], np.arange(len(id_ranks) + 1))
        self.kind, self.exact, self.score_if_not_found = index.kind, index.exact, index.score_if_not_found

    def __len__(self) -> int:
        return len(self._starts) - 1

    def _search_into(self, queries: Any, depth: int, rows: np.ndarray, scores: np.ndarray) -> None:
        deeper = math.ceil(depth * len(self._index) / len(self) * SPARE_SHARE) + SPARE_HITS
        pending = np.arange(len(rows))
        while len(pending):
            scores_all = self.exact and deeper >= len(self._rows) < len(self._index)
            step = max(1, HITS_AT_ONCE // min(deeper, len(self._index)))
            incomplete = list[int]()
            for part in np.split(pending, range(step, len(pending), step)):
                if scores_all:
                    self._score_documents(select_queries(queries, part), rows, scores, part)
                else:
                    incomplete += self._search_deeper(select_queries(queries, part), depth, deeper, rows, scores, part)
            deeper, pending = GROWTH * deeper, np.array(incomplete, dtype=np.int64)

    def _search_deeper(
        self, queries: Any, depth: int, deeper: int, rows: np.ndarray, scores: np.ndarray, query_rows: np.ndarray
    ) -> list[int]:
        """Fill the results of some queries from deeper lists; returns those that are incomplete."""
        incomplete = []
        for query, hits, values in zip(query_rows.tolist(), *self._index.search(queries, deeper), strict=True):
            is_hit = (hits != NO_ROW) & (self._documents[hits] != NO_ROW)
            documents, first = np.unique(self._documents[hits[is_hit]], return_index=True)  # each at its best row
            best = values[is_hit][first]
            certain = np.count_nonzero(best > values[-1]) if len(self._rows) > len(self) else len(best)
            if hits[-1] == NO_ROW or deeper >= len(self._index) or certain >= depth:
                fill_ranked_hits(documents, best, self.id_ranks, rows[query], scores[query])
            else:
                incomplete.append(query)
        return incomplete

    def _score_documents(self, queries: Any, rows: np.ndarray, scores: np.ndarray, query_rows: np.ndarray) -> None:
        """Fill the results of some queries from the scores of all documents."""
        count = len(query_rows)
        every = np.repeat(np.arange(count), len(self)), np.tile(np.arange(len(self)), count)
        for number, values in enumerate(self.score_pairs(queries, *every).reshape(count, len(self))):
            if values.any() or self._finds_any(select_queries(queries, np.array([number]))):
                hits = np.flatnonzero(values != self.score_if_not_found)
                fill_ranked_hits(hits, values[hits], self.id_ranks, rows[query_rows[number]], scores[query_rows[number]])

    def _finds_any(self, query: Any) -> bool:
        """Whether a query that scores 0 with every document retrieves any: one without tokens does not."""
        return bool(self._index.search(query, 1)[0][0, 0] != NO_ROW)

    def _score_pairs(self, queries: Any, query_rows: np.ndarray, document_rows: np.ndarray) -> np.ndarray:
        counts = np.diff(self._starts)[document_rows]
        begins = np.cumsum(counts) - counts
        rows = self._rows[np.arange(counts.sum()) + np.repeat(self._starts[document_rows] - begins, counts)]
        return np.asarray(np.maximum.reduceat(self._index.score_pairs(queries, np.repeat(query_rows, counts), rows), begins))

    def expect_many_queries(self) -> None:
        self._index.expect_many_queries()

    def token_vectors(self, row: int) -> np.ndarray | None:
        return self._index.token_vectors(int(self._rows[self._starts[row]]))


def check_ids(source: str, ids: Collection[str], known: Container[str], label: str, *, may_be_new: bool = False) -> None:
    """Warn of ids that an index does not have; DataError if it has none of them, unless they `may_be_new`."""
    unknown = [name for name in ids if name not in known]
    if unknown and len(unknown) == len(ids) and not may_be_new:
        raise DataError(f"{source}: none of its ids is in {label}, such as {unknown[0]!r}; expected ids of its documents")
    if unknown:
        log.warning("%s: %d of %d ids are not in %s, such as %r; they are left out", source, len(unknown), len(ids), label, unknown[0])
