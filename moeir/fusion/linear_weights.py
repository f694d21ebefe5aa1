"""Weights of a sum of scores, fitted on judged queries with the listwise softmax loss: CAME's LinearLayer (Cai et al., §5.3, Table 4).

    score(q, d) = Σ_e a_e · s_e(q, d)

s: scores, a missing document as in came-sum. Each list's scores are divided by their mean range while the weights are fitted. Weights are
positive, so that no list's order is turned round; the overall factor, which is free, is fixed by a geometric mean of 1.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from moeir.errors import DataError
from moeir.fusion import formulas, score_lists
from moeir.fusion.score_lists import Float64s, ScoreLists
from moeir.records.ids import Ids
from moeir.records.qrels import Qrels
from moeir.records.runs import Run

WEIGHT_L2 = 1e-6  # keeps the weights finite where one list is always right
MAX_ITERATIONS = 300
FIT_DEPTH = 100  # documents of each list that weights are fitted on
LEAST_SHARE = 0.01  # of the greatest weight: a list that helps nothing still has a weight above 0
FOLDS, SEED = 5, 42


@dataclass(frozen=True, eq=False)
class FusionExamples:
    """Scaled scores [E, n] of the documents of Q queries.

    list_spread [E]: mean score range of each list, which its scores are divided by; starts [Q]: first document of each query;
    targets [n] sum to 1 for each query; `queries` holds the query ids, if they are known.
    """

    scores: Float64s
    list_spread: Float64s
    starts: NDArray[np.int64]
    targets: Float64s
    queries: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Number of documents of each query [Q]."""
        return np.diff(np.append(self.starts, len(self.targets)))

    def subset(self, mask: NDArray[np.bool_]) -> "FusionExamples":
        """The queries where `mask` [Q] is true."""
        rows, sizes = np.repeat(mask, self.sizes), self.sizes[mask]
        queries = [self.queries[row] for row in np.flatnonzero(mask).tolist()] if self.queries else ()
        return FusionExamples(self.scores[:, rows], self.list_spread, np.cumsum(sizes) - sizes, self.targets[rows], queries)


def listwise_loss(weights: Float64s, examples: FusionExamples) -> tuple[float, Float64s]:
    """Mean over queries of −Σ_d target_d · log softmax(score)_d, and its gradient [E] (Cao et al. 2007, ListNet's top one)."""
    sizes, starts, scores = examples.sizes, examples.starts, weights @ examples.scores
    scores = scores - np.repeat(np.maximum.reduceat(scores, starts), sizes)
    exponentials = np.exp(scores)
    totals = np.add.reduceat(exponentials, starts)
    value = float((np.log(totals) - np.add.reduceat(examples.targets * scores, starts)).mean())
    errors = (exponentials / np.repeat(totals, sizes) - examples.targets) / len(examples)  # [n]
    return value, examples.scores @ errors


def fit_weights(examples: FusionExamples) -> list[float]:
    """The positive weight of each list's own scores, of least loss, by L-BFGS."""

    def objective(weights: Float64s) -> tuple[float, Float64s]:
        value, gradient = listwise_loss(weights, examples)
        return value + WEIGHT_L2 * float(weights @ weights) / 2, gradient + WEIGHT_L2 * weights

    count, limits = len(examples.scores), {"maxiter": MAX_ITERATIONS, "maxfun": 2 * MAX_ITERATIONS}
    fitted = minimize(objective, np.zeros(count), jac=True, method="L-BFGS-B", bounds=[(0.0, None)] * count, options=limits).x
    return normalise_weights(np.maximum(fitted, LEAST_SHARE * fitted.max()) / examples.list_spread)


def normalise_weights(weights: Float64s) -> list[float]:
    """Weights with a geometric mean of 1, to four significant digits; 1 for each if they are 0.

    >>> normalise_weights(np.array([1.0, 4.0])), normalise_weights(np.zeros(2))
    ([0.5, 2.0], [1.0, 1.0])
    """
    if not weights.all():
        return [1.0] * len(weights)
    return [float(f"{weight:.4g}") for weight in weights / np.exp(np.log(weights).mean())]


def format_method(weights: Iterable[float]) -> str:
    """The fusion method with these weights, to six significant digits.

    >>> format_method([1, 0.3333333333, 1e7])
    'linear:weights=1+0.333333+1e07'
    """
    return f"linear:weights={'+'.join(f'{weight:.6g}'.replace('e+', 'e') for weight in weights)}"


def split_folds(examples: FusionExamples) -> Iterator[tuple[FusionExamples, FusionExamples]]:
    """For each of FOLDS folds of the shuffled queries the other queries and its own; nothing for a single query."""
    folds = min(FOLDS, len(examples))
    fold = np.random.default_rng(SEED).permutation(len(examples)) % max(folds, 2)
    for one in range(folds if folds > 1 else 0):
        yield examples.subset(fold != one), examples.subset(fold == one)


def build_examples(runs: Sequence[Run], qrels: Qrels, depth: int) -> FusionExamples:
    """Examples of the queries that have a relevant document in the first `depth` hits of some list; DataError if there is none."""
    queries = [query for query in qrels if any(query in run.query_rows for run in runs)]
    names, blocks = formulas.align_runs(runs, queries)
    ids = Ids.from_strings(names)
    parts: list[tuple[NDArray[np.float64] | NDArray[np.int64], ...]] = []
    used_queries: list[str] = []
    for lists in blocks:
        documents, scores = score_lists.align(lists, score_lists.raw_scores, ScoreLists.missing_scores)
        ranks = score_lists.align(lists, lambda one: one.ranks.astype(np.float64), score_lists.zero_for_missing)[1]
        within_depth = ((ranks > 0) & (ranks <= depth)).any(axis=0)
        documents, scores = documents[within_depth], scores[:, within_depth]
        query_rows, gains = documents // lists[0].width, _lookup_gains(lists[0], documents, ids, qrels)
        totals = np.bincount(query_rows, gains, minlength=len(lists[0].queries))
        has_gain = totals > 0
        used_queries += [query for query, is_used in zip(lists[0].queries, has_gain.tolist(), strict=True) if is_used]
        rows = has_gain[query_rows]
        spreads = np.stack([one.first_scores() - one.last_scores() for one in lists])[:, has_gain]
        sizes = np.bincount(query_rows, minlength=len(has_gain))[has_gain]
        parts.append((scores[:, rows], spreads, gains[rows] / totals[query_rows[rows]], sizes))
    if not parts or not sum(len(part[3]) for part in parts):
        raise DataError(f"no query has a relevant document among the first {depth} of any run; are the judgements of these queries?")
    all_scores, all_spreads, targets, all_sizes = (np.concatenate(arrays, axis=-1) for arrays in zip(*parts, strict=True))
    mean_spread = all_spreads.mean(axis=1)
    list_spread = np.where(mean_spread > 0, mean_spread, 1.0)
    return FusionExamples(all_scores / list_spread[:, None], list_spread, np.cumsum(all_sizes) - all_sizes, targets, used_queries)


def _lookup_gains(lists: ScoreLists, documents: NDArray[np.int64], ids: Ids, qrels: Qrels) -> Float64s:
    """The gain of each of `documents` for its query: its grade if above 0, as in nDCG, else 0."""
    grades = [(row, name, grade) for row, query in enumerate(lists.queries) for name, grade in qrels[query].items() if grade > 0]
    codes = ids.lookup([name for _, name, _ in grades])
    known = np.flatnonzero(codes >= 0)
    keys = np.array([row for row, _, _ in grades], dtype=np.int64)[known] * lists.width + codes[known]
    _, rows, judgements = np.intersect1d(documents, keys, assume_unique=True, return_indices=True)
    gains = np.zeros(len(documents))
    gains[rows] = np.array([grade for _, _, grade in grades], dtype=np.float64)[known[judgements]]
    return gains
