"""Exact sum fusion at search time: scores missing from an expert's list are computed by its engine.

This needs the indexes, not only runs, so it is part of search. CoT-MoTE's hybrid is such a sum (Ma et al. 2023, §3.3), and COIL's score.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from moeir.errors import DataError
from moeir.indexes.base import NO_ROW, SearchableIndex, fill_ranked_hits

Engines = Mapping[str, SearchableIndex]
HitLists = Mapping[str, tuple[np.ndarray, np.ndarray]]


def select_queries(queries: Any, rows: np.ndarray) -> Any:
    """Some queries of a batch, as the engines take them."""
    if isinstance(queries, list):
        return [queries[row] for row in rows]
    import torch

    return queries.select(torch.from_numpy(rows).to(queries.device))


def fuse_exact(engines: Engines, queries: Mapping[str, Any], lists: HitLists) -> tuple[np.ndarray, np.ndarray]:
    """The best sums of scores among all documents that are in any of the lists: rows int64 [Q, K], scores float32 [Q, K].

    `lists` are the engines' results for the queries, all to one depth K; sums are float64 in the order of the engines, rounded to float32.
    """
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
    best = np.full((count, width), NO_ROW, np.int64), np.full((count, width), -np.inf, np.float32)
    ends = np.searchsorted(query, np.arange(count + 1))
    for query_row in range(count):
        hit_range = slice(ends[query_row], ends[query_row + 1])
        is_hit = sums[hit_range] > -np.inf
        fill_ranked_hits(document[hit_range][is_hit], sums[hit_range][is_hit], first.id_ranks, best[0][query_row], best[1][query_row])
    return best


def _pair_keys(rows: np.ndarray, documents: int) -> np.ndarray:
    """Key query · N + document of every hit, in the order of `rows[rows != NO_ROW]`."""
    query, position = np.nonzero(rows != NO_ROW)
    return query * np.int64(documents) + rows[query, position]
