"""Fusion formulas: several ranked lists of a query become one.

A formula takes one query's lists, each (documents, scores) with the best first, and returns their union: documents ascending and one
score per document. Sums run in float64, in the order of the lists, and are rounded to float32. With `apart` a formula returns what each
list contributes instead of the sum: float64, one row per list. Many queries are fused at once when their lists are `ScoreLists`.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, TypeAlias

import numpy as np

from moeir.errors import UsageError
from moeir.fusion import FUSED, score_lists
from moeir.fusion.score_lists import Hits, RankedLists, ScoreLists
from moeir.records.ids import merge_ids
from moeir.records.runs import Run, mask_within_depth, sort_lists
from moeir.records.trec_columns import release_memory

FusionFormula: TypeAlias = Callable[..., Hits]

_HITS_PER_BLOCK = 2**18  # bounds the memory of a block


def came_sum(lists: RankedLists, apart: bool = False) -> Hits:
    """Sum of scores; a document missing from a list gets the list's K-th score, or 0 from a list with fewer than K hits.

    Cai et al., CAME, §3.4; K is the depth of the search. Of a short list the lower bound of a score counts (`ScoreLists.missing_scores`).
    An empty list contributes nothing.

    >>> lexical = (np.array([4, 7]), np.array([9.0, 5.0], np.float32))
    >>> dense = (np.array([7, 2]), np.array([0.5, 0.25], np.float32))
    >>> documents, scores = came_sum([lexical, dense])
    >>> dict(zip(documents.tolist(), scores.tolist()))
    {2: 5.25, 4: 9.25, 7: 5.5}
    >>> documents, scores = came_sum([ScoreLists.from_hits(lexical, depth=3), dense])
    >>> dict(zip(documents.tolist(), scores.tolist()))
    {2: 0.25, 4: 9.25, 7: 5.5}
    """
    return score_lists.fuse(lists, score_lists.raw_scores, ScoreLists.missing_scores, apart)


def exact_sum(lists: RankedLists, apart: bool = False) -> Hits:
    """Sum of the scores of all experts, those of documents outside their lists too, which the index computes: for search alone.

    CoT-MoTE's hybrid (§3). `moeir fuse` refuses it: a run has no scores outside its lists.
    """
    raise UsageError("exact-sum: a run has no scores of documents outside its lists; use moeir search --fuse exact-sum")


def normsum(lists: RankedLists, apart: bool = False) -> Hits:
    """Sum of min-max normalised scores, (s − min) / (max − min) per list; a missing document gets 0, as the last of the list does.

    Cai et al., CAME, §5.3, Table 4. A list whose scores are all equal counts 0.

    >>> documents, scores = normsum([(np.array([4, 7]), np.array([9.0, 5.0])), (np.array([7, 2]), np.array([0.5, 0.25]))])
    >>> dict(zip(documents.tolist(), scores.tolist()))
    {2: 0.0, 4: 1.0, 7: 1.0}
    """
    return score_lists.fuse(lists, score_lists.minmax, score_lists.zero_for_missing, apart)


def normmax(lists: RankedLists, apart: bool = False) -> Hits:
    """Maximum of min-max normalised scores, (s − min) / (max − min) per list; a missing document gets 0.

    Cai et al., CAME, §5.3, Table 4. With `apart`, the list with the maximum contributes it and the other lists contribute 0.

    >>> documents, scores = normmax([(np.array([4, 7, 1]), np.array([9.0, 6.0, 5.0])), (np.array([7, 2]), np.array([0.5, 0.25]))])
    >>> dict(zip(documents.tolist(), scores.tolist()))
    {1: 0.0, 2: 0.0, 4: 1.0, 7: 1.0}
    """
    return score_lists.fuse(lists, score_lists.minmax, score_lists.zero_for_missing, apart, maximum=True)


def sumrr(lists: RankedLists, apart: bool = False) -> Hits:
    """Sum of 1 / rank; a missing document gets 1 / K, K the depth of the search.

    Cai et al., CAME, §5.3, Table 4. An empty list contributes nothing.

    >>> documents, scores = sumrr([(np.array([4, 7]), np.array([9.0, 5.0])), (np.array([7]), np.array([0.5]))])
    >>> dict(zip(documents.tolist(), scores.tolist()))
    {4: 2.0, 7: 1.5}
    """
    return score_lists.fuse(lists, score_lists.reciprocal_ranks, score_lists.missing_reciprocal_ranks, apart)


def maxrr(lists: RankedLists, apart: bool = False) -> Hits:
    """Maximum of 1 / rank; a missing document gets 1 / K, K the depth of the search.

    Cai et al., CAME, §5.3, Table 4. Many documents tie and are ordered by id. With `apart`, the list with the maximum contributes it.

    >>> documents, scores = maxrr([(np.array([4, 7]), np.array([9.0, 5.0])), (np.array([7]), np.array([0.5]))])
    >>> dict(zip(documents.tolist(), scores.tolist()))
    {4: 1.0, 7: 1.0}
    """
    return score_lists.fuse(lists, score_lists.reciprocal_ranks, score_lists.missing_reciprocal_ranks, apart, maximum=True)


def combsum(lists: RankedLists, apart: bool = False) -> Hits:
    """Sum of scores; a missing document gets 0.

    Fox and Shaw 1994.

    >>> documents, scores = combsum([(np.array([4, 7]), np.array([9.0, 5.0])), (np.array([7]), np.array([0.5]))])
    >>> dict(zip(documents.tolist(), scores.tolist()))
    {4: 9.0, 7: 5.5}
    """
    return score_lists.fuse(lists, score_lists.raw_scores, score_lists.zero_for_missing, apart)


def rrf(lists: RankedLists, apart: bool = False, *, constant: float = 60.0) -> Hits:
    """Reciprocal rank fusion: sum of 1 / (constant + rank); a missing document gets 0.

    Cormack, Clarke and Büttcher 2009; ranks from 1.

    >>> documents, scores = rrf([(np.array([4, 7]), np.array([9.0, 5.0])), (np.array([7]), np.array([0.5]))], constant=1)
    >>> dict(zip(documents.tolist(), scores.round(4).tolist()))
    {4: 0.5, 7: 0.8333}
    """
    if not constant >= 0:
        raise UsageError(f"rrf:constant={constant}: expected 0 or more")
    return score_lists.fuse(lists, lambda one: score_lists.reciprocal_ranks(one, constant), score_lists.zero_for_missing, apart)


def zscore(lists: RankedLists, apart: bool = False) -> Hits:
    """Sum of standardised scores, (s − mean) / deviation per list; a missing document gets the list's smallest.

    A list whose scores are all equal contributes 0 to every document.

    >>> documents, scores = zscore([(np.array([4, 7]), np.array([9.0, 5.0])), (np.array([7, 2]), np.array([0.5, 0.5]))])
    >>> dict(zip(documents.tolist(), scores.tolist()))
    {2: -1.0, 4: 1.0, 7: -1.0}
    """
    return score_lists.fuse(lists, score_lists.standardise, ScoreLists.last_scores, apart)


def hybrid(lists: RankedLists, apart: bool = False, *, alpha: float = 1.0, normalise: str = "none", depth: int = 100) -> Hits:
    """First + alpha · second, over the first `depth` hits of each; a document missing from a list gets the list's smallest score.

    Ma et al. 2021, and TASER, §4.1 and app. D. `normalise=centred` first maps each list's scores to (s − (min + max) / 2) / (max − min);
    where all are equal, each counts 0. Takes exactly two lists; an empty one contributes nothing.

    >>> dense, bm25 = (np.array([7, 2]), np.array([0.5, 0.25])), (np.array([4, 7]), np.array([9.0, 5.0]))
    >>> documents, scores = hybrid([dense, bm25], alpha=0.5)
    >>> dict(zip(documents.tolist(), scores.tolist()))
    {2: 2.75, 4: 4.75, 7: 3.0}
    """
    if alpha < 0:
        raise UsageError(f"hybrid:alpha={alpha}: expected 0 or more")
    if normalise not in ("none", "centred"):
        raise UsageError(f"hybrid:normalise={normalise}: expected none or centred")
    if depth < 1:
        raise UsageError(f"hybrid:depth={depth}: expected at least 1")
    if len(lists) != 2:
        raise UsageError(f"hybrid: expected two runs, found {len(lists)}: first + alpha · second")
    best = [ScoreLists.from_hits(one).top(depth) for one in lists]
    score = score_lists.centre if normalise == "centred" else score_lists.raw_scores
    return score_lists.fuse(best, score, ScoreLists.last_scores, apart, (1.0, alpha))


def combmnz(lists: RankedLists, apart: bool = False) -> Hits:
    """Sum of scores times the number of lists that hold the document; a missing document gets 0.

    Fox and Shaw 1994; scores are min-max normalised per list as in Lee 1997.

    >>> documents, scores = combmnz([(np.array([4, 7]), np.array([9.0, 5.0])), (np.array([7, 4, 1]), np.array([4.0, 3.0, 2.0]))])
    >>> dict(zip(documents.tolist(), scores.tolist()))
    {1: 0.0, 4: 3.0, 7: 2.0}
    """
    documents, columns = score_lists.align(lists, score_lists.minmax, score_lists.zero_for_missing)
    list_counts = sum(np.isin(documents, ScoreLists.from_hits(one).documents).astype(np.float64) for one in lists)
    return score_lists.combine(documents, columns * list_counts, apart)


def linear(lists: RankedLists, apart: bool = False, *, weights: str = "") -> Hits:
    """Weighted sum of scores; a document missing from a list gets the list's K-th score, or 0 from a list with fewer than K hits.

    Cai et al., CAME, §5.3, Table 4 (LinearLayer). `weights=1+0.5+2` has one weight per run, in order; moeir calibrate fits them.

    >>> lexical, dense = (np.array([4, 7]), np.array([9.0, 5.0])), (np.array([7, 2]), np.array([0.5, 0.25]))
    >>> documents, scores = linear([lexical, dense], weights="1+2")
    >>> dict(zip(documents.tolist(), scores.tolist()))
    {2: 5.5, 4: 9.5, 7: 6.0}
    """
    try:
        numbers = [float(weight) for weight in weights.split("+")]
    except ValueError:
        numbers = []
    if len(numbers) != len(lists) or not np.isfinite(numbers).all():
        expected = f"{len(lists)} finite numbers, one per run, joined by +; moeir calibrate fits them"
        raise UsageError(f"linear:weights={weights}: expected {expected}")
    return score_lists.fuse(lists, score_lists.raw_scores, ScoreLists.missing_scores, apart, numbers)


def fuse_runs(runs: Sequence[Run], merge: FusionFormula, depth: int | None = None) -> Run:
    """Fuse runs query by query and keep the first `depth` hits; the result has every query of any run.

    A run without a query counts as an empty list for it. Queries are in order of first appearance.
    """
    queries = list(dict.fromkeys(chain.from_iterable(run.queries for run in runs)))
    document_ids, blocks = align_runs(runs, queries)
    limit = len(document_ids) if depth is None else depth
    capacity = sum(int(np.minimum(np.diff(run.starts), limit).sum()) for run in runs)  # for all hits; pages never written take no memory
    starts, documents, scores = [0], np.empty(capacity, np.int32), np.empty(capacity, np.float32)
    for lists in blocks:
        size = len(lists[0].queries)
        keys, totals = _check_fused(merge(lists), size * len(document_ids))
        bounds = np.searchsorted(keys, np.arange(size + 1) * len(document_ids))
        best, values = sort_lists(bounds, keys - np.repeat(np.arange(size) * len(document_ids), np.diff(bounds)), totals)
        within_depth, top_starts = mask_within_depth(bounds, limit)
        rows = slice(starts[-1], starts[-1] + int(top_starts[-1]))
        documents[rows], scores[rows] = best[within_depth], values[within_depth]
        starts.extend((starts[-1] + top_starts[1:]).tolist())
    return Run(queries, np.array(starts), documents[: starts[-1]], scores[: starts[-1]], document_ids, FUSED, depth)


def _check_fused(fused: Any, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """What a formula returns; UsageError if it is not pairs of document and score, which own code may forget."""
    try:
        documents, scores = fused
        is_valid = documents.dtype.kind in "iu" and documents.shape == scores.shape == (len(scores),) and np.isfinite(scores).all()
    except (TypeError, ValueError, AttributeError):
        is_valid = False
    if not is_valid or (len(documents) and (documents[0] < 0 or documents[-1] >= limit or (np.diff(documents) <= 0).any())):
        raise UsageError("the fusion has to return two arrays of one length: documents of the lists, ascending, and their scores, finite")
    return documents, scores


def align_runs(runs: Sequence[Run], queries: Sequence[str]) -> tuple[Sequence[str], Iterator[list[ScoreLists]]]:
    """All document ids, and blocks of the queries' lists: one `ScoreLists` per run, at most _HITS_PER_BLOCK hits per block."""
    document_ids, translations = merge_ids([run.document_ids for run in runs])
    release_memory(len(document_ids))
    longest = max((int(np.diff(run.starts).max()) for run in runs if len(run)), default=1)
    block_size = max(1, _HITS_PER_BLOCK // max(longest * len(runs), 1))
    blocks = (queries[first : first + block_size] for first in range(0, len(queries), block_size))
    return document_ids, (
        [ScoreLists.from_run(run, translation, block, len(document_ids)) for run, translation in zip(runs, translations, strict=True)]
        for block in blocks
    )
