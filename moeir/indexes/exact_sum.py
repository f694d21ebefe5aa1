"""Exact sum fusion at search time: scores missing from an expert's list are computed by its engine.

This needs the indexes, not only runs, so it is part of search. CoT-MoTE's hybrid is such a sum (Ma et al. 2023, §3.3), and COIL's score.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from moeir.errors import DataError
from moeir.indexes.base import NO_ROW, SearchableIndex, fill_ranked_hits

Engines = Mapping[str, SearchableIndex]
HitLists = Mapping[str, tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class FusedHits:
    """rows int64 [Q, K], scores float32 [Q, K] in rank order, blanks as in an index's result; proven_depth int64 [Q]: how many of the
    first ranks are certain to be those of the sum over all documents."""

    rows: np.ndarray
    scores: np.ndarray
    proven_depth: np.ndarray

    def is_proven(self, depth: int) -> np.ndarray:
        """Whether the first `depth` ranks, or all hits if fewer, are proven: bool [Q]."""
        is_proven: np.ndarray = self.proven_depth >= np.minimum(depth, (self.rows != NO_ROW).sum(1))
        return is_proven


def fuse_exact(engines: Engines, queries: Mapping[str, Any], lists: HitLists, *, search_deeper: bool = False) -> FusedHits:
    """The best sums of scores among all documents that are in any of the lists.

    `lists` are the engines' results for the queries, all to one depth K; sums are float64 in the order of the engines, rounded to
    float32. A document in no list has at most the sum of the lists' last scores (the threshold of Fagin et al. 2003), so ranks above it
    are proven. `search_deeper` doubles the depth of the lists for queries that are not proven to K, until all are.
    """
    fused = _fuse_once(engines, queries, lists)
    width, depth = fused.rows.shape[1], fused.rows.shape[1]
    document_count = len(next(iter(engines.values())))
    while search_deeper and depth < document_count and len(unproven := np.flatnonzero(~fused.is_proven(width))):
        depth = min(2 * depth, document_count)
        unproven_queries = {name: select_queries(queries[name], unproven) for name in engines}
        deeper = _fuse_once(
            engines, unproven_queries, {name: engine.search(unproven_queries[name], depth) for name, engine in engines.items()}
        )
        fused.rows[unproven], fused.scores[unproven] = deeper.rows[:, :width], deeper.scores[:, :width]
        fused.proven_depth[unproven] = np.minimum(deeper.proven_depth, width)
    return fused


def select_queries(queries: Any, rows: np.ndarray) -> Any:
    """Some queries of a batch, as the engines take them."""
    if isinstance(queries, list):
        return [queries[row] for row in rows]
    import torch

    return queries.select(torch.from_numpy(rows).to(queries.device))


def _fuse_once(engines: Engines, queries: Mapping[str, Any], lists: HitLists) -> FusedHits:
    first, documents = next(iter(engines.values())), max(map(len, engines.values()))
    count, width = lists[next(iter(engines))][0].shape
    keys = {name: _pair_keys(lists[name][0], documents) for name in engines}
    union = np.unique(np.concatenate(list(keys.values())))
    query, document = union // max(documents, 1), union % max(documents, 1)
    total = np.zeros(len(union), dtype=np.float64)
    for name, engine in engines.items():
        rows, scores = lists[name]
        column, is_known = np.empty(len(union), dtype=np.float32), np.zeros(len(union), dtype=bool)
        positions = np.searchsorted(union, keys[name])
        column[positions], is_known[positions] = scores[rows != NO_ROW], True
        column[~is_known] = engine.score_pairs(queries[name], query[~is_known], document[~is_known])
        total += column
    sums = total.astype(np.float32)
    if not (sums < np.inf).all():
        raise DataError("exact-sum: a sum of scores is NaN, or too large for float32; check the scores of the experts")
    fused = FusedHits(np.full((count, width), NO_ROW, np.int64), np.full((count, width), -np.inf, np.float32), np.zeros(count, np.int64))
    bounds, complete = _unseen_score_bounds(engines, lists)
    id_ranks, ends = first.id_ranks, np.searchsorted(query, np.arange(count + 1))
    for query_row in range(count):
        hit_range = slice(ends[query_row], ends[query_row + 1])
        is_hit = sums[hit_range] > -np.inf
        fill_ranked_hits(document[hit_range][is_hit], sums[hit_range][is_hit], id_ranks, fused.rows[query_row], fused.scores[query_row])
        above = fused.scores[query_row] > bounds[query_row]
        fused.proven_depth[query_row] = ((above | complete[query_row]) & (fused.rows[query_row] != NO_ROW)).sum()
    return fused


def _pair_keys(rows: np.ndarray, documents: int) -> np.ndarray:
    """Key query · N + document of every hit, in the order of `rows[rows != NO_ROW]`."""
    query, position = np.nonzero(rows != NO_ROW)
    return query * np.int64(documents) + rows[query, position]


def _unseen_score_bounds(engines: Engines, lists: HitLists) -> tuple[np.ndarray, np.ndarray]:
    """Upper bound of the score of a document in no list, float32 [Q], and whether no engine can retrieve such a document, bool [Q]."""
    total, complete = np.zeros(len(next(iter(lists.values()))[0])), True
    for name, engine in engines.items():
        rows, scores = lists[name]
        if not (len(total) and rows.shape[1]):
            continue  # no engine retrieves anything
        exhausted = (rows[:, -1] == NO_ROW) | (rows.shape[1] == len(engine))
        highest = np.maximum(np.where(exhausted, -np.inf, scores[:, -1]), engine.score_if_not_found).astype(np.float64)
        total += np.where(rows[:, 0] == NO_ROW, np.maximum(highest, 0.0), highest)  # a query without hits adds 0
        complete = complete & exhausted
    exact = all(engine.exact for engine in engines.values())
    return np.where(exact, total, np.inf).astype(np.float32), complete & np.full(len(total), exact)
