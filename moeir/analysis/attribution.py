"""Contribution of each run to a fusion: its part of every score, and documents that only it retrieves."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from moeir.fusion import formulas, score_lists
from moeir.fusion.formulas import FusionFormula
from moeir.records.runs import Run, format_score

HIT_COLUMNS = ("query", "document", "rank", "score", "alone")
RUN_COLUMNS = ("rank", "score", "part")


def hit_rows(runs: Mapping[str, Run], merge: FusionFormula, fused: Run) -> Iterator[list[object]]:
    """One row per hit of the fused run: HIT_COLUMNS, then RUN_COLUMNS of every run, empty if its list lacks the document.

    `alone` names the only run whose list has the document. Parts add up to the score, up to rounding.
    """
    names = list(runs)
    for first, documents, ranks, scores, parts in _iter_hit_blocks(list(runs.values()), merge, fused):
        alone = np.where((ranks > 0).sum(axis=0) == 1, (ranks > 0).argmax(axis=0), -1)
        owners = np.searchsorted(fused.starts, first + np.arange(len(documents)), side="right") - 1
        for row, (owner, document) in enumerate(zip(owners.tolist(), documents.tolist(), strict=True)):
            rank = first + row - int(fused.starts[owner]) + 1
            score = format_score(fused.scores[first + row])
            only_run = names[alone[row]] if alone[row] >= 0 else ""
            cells: list[object] = [fused.queries[owner], fused.document_ids[document], rank, score, only_run]
            for list_rank, list_score, part in zip(ranks[:, row].tolist(), scores[:, row], parts[:, row].tolist(), strict=True):
                cells += [list_rank, format_score(list_score), part] if list_rank else ["", "", part]
            yield cells


def hit_header(names: Sequence[str]) -> list[str]:
    """Columns of `hit_rows`.

    >>> hit_header(["bm25", "dense"])[5:]
    ['bm25.rank', 'bm25.score', 'bm25.part', 'dense.rank', 'dense.score', 'dense.part']
    """
    return [*HIT_COLUMNS, *(f"{name}.{what}" for name in names for what in RUN_COLUMNS)]


def _iter_hit_blocks(
    runs: Sequence[Run], merge: FusionFormula, fused: Run
) -> Iterator[tuple[int, NDArray[np.int32], NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]]:
    """The fused hits in blocks: first row, documents [n]; for each list their ranks (0: absent), scores and parts [E, n]."""
    names, blocks = formulas.align_runs(runs, fused.queries)
    row, width = 0, len(names)
    for lists in blocks:
        last = row + len(lists[0].queries)
        first, end = int(fused.starts[row]), int(fused.starts[last])
        owners = np.repeat(np.arange(last - row), np.diff(fused.starts[row : last + 1]))
        union, parts = merge(lists, apart=True)
        rows = np.searchsorted(union, owners * width + fused.documents[first:end])
        ranks = score_lists.align(lists, lambda one: one.ranks.astype(np.float64), score_lists.zero_for_missing)
        scores = score_lists.align(lists, score_lists.raw_scores, score_lists.zero_for_missing)[1]
        columns = np.searchsorted(ranks[0], union[rows])
        list_ranks, list_parts = ranks[1][:, columns].astype(np.int64), parts[:, rows].astype(np.float64)
        yield first, fused.documents[first:end], list_ranks, scores[:, columns], list_parts
        row = last
