"""Several experts scored as one: the sum of their scores, the sides that an expert's list lacks computed from what its engine stores.

No run holds what this needs, so it belongs to search. CoT-MoTE's hybrid is such a sum (Ma et al. 2023, §3.3), and COIL's score.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from moeir.indexes.base import NO_ROW, Index, place_hits

Lists = Mapping[str, tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Summed:
    """rows int64 [Q, K], scores float32 [Q, K] in the order of ranks, blank as those of an index; `proven` int64 [Q] says how many of the
    first ranks are those of the sum over all documents."""

    rows: np.ndarray
    scores: np.ndarray
    proven: np.ndarray

    def holds(self, depth: int) -> np.ndarray:
        """Whether the first `depth` ranks, or all there are, are proven: bool [Q]."""
        held: np.ndarray = self.proven >= np.minimum(depth, (self.rows != NO_ROW).sum(1))
        return held


def summed(engines: Mapping[str, Index], queries: Mapping[str, Any], lists: Lists, *, deepen: bool = False) -> Summed:
    """The best sums of scores, among all documents that stand in one of the lists.

    `lists` are what the engines found for the queries, to one depth K; float64 sums in the order of the engines, rounded to float32. What
    stands in no list has at most the sum of the lists' last scores (the threshold of Fagin et al. 2003), so ranks above it are proven.
    `deepen` doubles the depth of the lists for the queries that are not proven to K, until all are.
    """
    found = _once(engines, queries, lists)
    width, depth = found.rows.shape[1], found.rows.shape[1]
    most = len(next(iter(engines.values())))
    while deepen and depth < most and len(again := np.flatnonzero(~found.holds(width))):
        depth = min(2 * depth, most)
        some = {name: _chosen(queries[name], again) for name in engines}
        deeper = _once(engines, some, {name: engine.search(some[name], depth) for name, engine in engines.items()})
        found.rows[again], found.scores[again] = deeper.rows[:, :width], deeper.scores[:, :width]
        found.proven[again] = np.minimum(deeper.proven, width)
    return found


def _chosen(queries: Any, rows: np.ndarray) -> Any:
    return [queries[row] for row in rows] if isinstance(queries, list) else queries.select(torch.from_numpy(rows).to(queries.device))


def _once(engines: Mapping[str, Index], queries: Mapping[str, Any], lists: Lists) -> Summed:
    first, documents = next(iter(engines.values())), max(map(len, engines.values()))
    count, width = lists[next(iter(engines))][0].shape
    keys = {name: _keys(lists[name][0], documents) for name in engines}
    union = np.unique(np.concatenate(list(keys.values())))
    query, document = union // max(documents, 1), union % max(documents, 1)
    total = np.zeros(len(union), dtype=np.float64)
    for name, engine in engines.items():
        rows, scores = lists[name]
        column, known = np.empty(len(union), dtype=np.float32), np.zeros(len(union), dtype=bool)
        places = np.searchsorted(union, keys[name])
        column[places], known[places] = scores[rows != NO_ROW], True
        column[~known] = engine.paired(queries[name], query[~known], document[~known])
        total += column
    sums = total.astype(np.float32)
    made = Summed(np.full((count, width), NO_ROW, np.int64), np.full((count, width), -np.inf, np.float32), np.zeros(count, np.int64))
    limits, whole = _limits(engines, lists)
    places, ends = first.places, np.searchsorted(query, np.arange(count + 1))
    for line in range(count):
        own = slice(ends[line], ends[line + 1])
        real = np.isfinite(sums[own])
        place_hits(document[own][real], sums[own][real], places, made.rows[line], made.scores[line])
        above = made.scores[line] > limits[line]
        made.proven[line] = ((above | whole[line]) & (made.rows[line] != NO_ROW)).sum()
    return made


def _keys(rows: np.ndarray, documents: int) -> np.ndarray:
    """(query, document) of every hit as one number, in the order of `rows[rows != NO_ROW]`."""
    query, place = np.nonzero(rows != NO_ROW)
    return query * np.int64(documents) + rows[query, place]


def _limits(engines: Mapping[str, Index], lists: Lists) -> tuple[np.ndarray, np.ndarray]:
    """What a document in no list can score at most, float32 [Q], and whether no such document is found by anyone, bool [Q]."""
    total, whole = np.zeros(len(next(iter(lists.values()))[0])), True
    for name, engine in engines.items():
        rows, scores = lists[name]
        if not (len(total) and rows.shape[1]):
            continue  # nothing is found by anyone
        ended = (rows[:, -1] == NO_ROW) | (rows.shape[1] == len(engine))
        highest = np.maximum(np.where(ended, -np.inf, scores[:, -1]), engine.unfound).astype(np.float64)
        total += np.where(rows[:, 0] == NO_ROW, np.maximum(highest, 0.0), highest)  # a query that finds nothing adds 0
        whole = whole & ended
    exact = all(engine.exact for engine in engines.values())
    return np.where(exact, total, np.inf).astype(np.float32), whole & np.full(len(total), exact)
