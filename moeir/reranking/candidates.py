"""Candidates of reranking: the top documents of a run as pairs with their queries, and the run with their new scores."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moeir import variants
from moeir.fusion import formulas
from moeir.records.runs import Integers, Run, Scores


@dataclass(frozen=True)
class Candidates:
    """The top `depth` documents of every query of a run: pair n is query number query[n] and document code document[n]."""

    run: Run
    depth: int
    query: Integers
    document: Integers

    @classmethod
    def from_run(cls, run: Run, depth: int) -> "Candidates":
        """Pairs query by query, in the order of ranks."""
        top = run.top(depth)
        return cls(run, depth, np.repeat(np.arange(len(top)), np.diff(top.starts)), top.documents.astype(np.int64))

    def __len__(self) -> int:
        return len(self.query)

    def apply_scores(self, scores: npt.ArrayLike, *, rest: bool = True, tag: str = "moeir") -> Run:
        """The run with these scores [n]; documents below the depth follow in their old order, or are dropped without `rest`.

        Trailing scores of a query may be NaN: not scored, treated as below the depth. Such a document scores one step less than the
        one before it, starting from the lowest new score of its query.
        """
        run, sizes = self.run, np.diff(self.run.starts)
        new = np.asarray(scores, dtype=np.float32)
        scored = ~np.isnan(new)
        if not rest:
            return Run.from_columns(run.queries, self.query[scored], run.document_ids, self.document[scored], new[scored], tag)
        depths = np.bincount(self.query[scored], minlength=len(run))
        owners = np.repeat(np.arange(len(run)), sizes)
        ranks = np.arange(len(owners)) - np.repeat(run.starts[:-1], sizes)
        lowest = np.full(len(run), np.inf)
        np.minimum.at(lowest, self.query[scored], new[scored])
        final = np.empty(len(owners))
        final[ranks < self.depth] = new
        unscored = ranks >= depths[owners]
        offsets = ranks[unscored] - depths[owners[unscored]] + 1
        final[unscored] = lowest[owners[unscored]] - offsets * _score_steps(lowest, sizes)[owners[unscored]]
        return Run.from_columns(run.queries, owners, run.document_ids, run.documents, final.astype(np.float32), tag)


def _score_steps(lowest: npt.NDArray[np.float64], sizes: Integers) -> npt.NDArray[np.float64]:
    """Steps between scores that float32 can distinguish: 1, more for very large scores."""
    reach = np.where(np.isfinite(lowest), np.abs(lowest), 0.0) + sizes
    return np.maximum(1.0, 4.0 * np.spacing(reach.astype(np.float32)).astype(np.float64))


def merge_runs(runs: Sequence[Run], merge: str) -> Run:
    """Fuse several runs into one list of candidates by the spec `merge`; a single run is returned unchanged."""
    return runs[0] if len(runs) == 1 else formulas.fuse_runs(runs, variants.bind_variant("fusion", merge))


def query_shard(run: Run, number: int, count: int) -> Run:
    """Queries of shard `number` of `count`, counted from 0: consecutive queries of the run."""
    first, last = (index * len(run) // count for index in (number, number + 1))
    rows = slice(int(run.starts[first]), int(run.starts[last]))
    starts = run.starts[first : last + 1] - run.starts[first]
    return Run(run.queries[first:last], starts, run.documents[rows], run.scores[rows], run.document_ids, run.tag)


def ensemble_scores(candidates: Candidates, scores: Sequence[Scores], ensemble: str) -> Scores:
    """Combine the scores of several rerankers query by query: M scores [n] -> [n]. Scores of a single reranker are unchanged."""
    if len(scores) == 1:
        return scores[0]
    merge, combined_scores = variants.bind_variant("reranking.ensembles", ensemble), np.empty(len(candidates), dtype=np.float32)
    stacked = np.stack(scores).astype(np.float64)
    ends = np.searchsorted(candidates.query, np.arange(len(candidates.run) + 1))
    for first, last in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
        if last > first:
            combined_scores[first:last] = merge(stacked[:, first:last])
    return combined_scores
