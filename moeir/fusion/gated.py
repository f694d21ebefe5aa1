"""Learned fusion: a weighted sum of scores, and a gated one whose expert weights depend on the query, plus document features.

    score(q, d) = Σ_e E · softmax(W z(q))_e · a_e · s_e(q, d)  +  v · x(q, d)

s: scores, a missing document as in came-sum; z: query features; x: document features (`features`). With W = 0 and v = 0 this is
the weighted sum of CAME's Table 4. The weights are fitted with the listwise softmax loss on judged queries.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import softmax

from moeir.errors import DataError
from moeir.fusion import features, formulas, score_lists
from moeir.fusion.features import ALL_LISTS_FEATURES, HIT_FEATURES, FusionFeatures, WordCounts
from moeir.fusion.score_lists import Float64s, Hits, RankedLists
from moeir.records.ids import Ids
from moeir.records.qrels import Qrels
from moeir.records.runs import Run

EXPERT_WEIGHT_L2 = 1e-6  # keeps the expert weights finite where one list is always right
MAX_DEVIATIONS = 4.0  # standardised query features are clipped here
MAX_ITERATIONS = 300


@dataclass(frozen=True, eq=False)
class FeatureScaler:
    """Feature scales: mean score range of each list [E], deviation of document features [F], mean and deviation of query features [Z]."""

    list_spread: Float64s
    document_deviation: Float64s
    query_mean: Float64s
    query_deviation: Float64s

    def scale_query_features(self, values: Float64s) -> Float64s:
        """Standardised query features z [Q, Z]."""
        bounded: Float64s = np.clip((values - self.query_mean) / self.query_deviation, -MAX_DEVIATIONS, MAX_DEVIATIONS)
        return bounded


@dataclass(frozen=True, eq=False)
class FusionExamples:
    """Training examples: scaled scores [E, n] and document features [F, n], scaled query features [Q, Z].

    starts [Q]: first document of each query; targets [n] sum to 1 for each query; `queries` holds the query ids, if they are known.
    """

    scores: Float64s
    document_features: Float64s
    query_features: Float64s
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
        starts, queries = np.cumsum(sizes) - sizes, [self.queries[row] for row in np.flatnonzero(mask).tolist()] if self.queries else ()
        of_documents = self.scores[:, rows], self.document_features[:, rows]
        return FusionExamples(*of_documents, self.query_features[mask], starts, self.targets[rows], queries)


@dataclass(frozen=True, eq=False)
class FusionWeights:
    """a [E], W [E, Z] and v [F]."""

    expert_weights: Float64s
    gate_weights: Float64s
    document_weights: Float64s

    def to_vector(self) -> Float64s:
        """All weights as one vector."""
        return np.concatenate([self.expert_weights, self.gate_weights.ravel(), self.document_weights])

    def from_vector(self, vector: Float64s) -> "FusionWeights":
        """Weights of the same shapes from one vector."""
        first, last = len(self.expert_weights), len(self.expert_weights) + self.gate_weights.size
        return FusionWeights(vector[:first], vector[first:last].reshape(self.gate_weights.shape), vector[last:])

    def compute_gates(self, query_features: Float64s) -> Float64s:
        """E · softmax(W z) [Q, E]: 1 for every expert where z or W is 0."""
        gates: Float64s = len(self.expert_weights) * softmax(query_features @ self.gate_weights.T, axis=1)
        return gates


def listwise_loss(weights: FusionWeights, examples: FusionExamples) -> tuple[float, FusionWeights]:
    """Mean over queries of −Σ_d target_d · log softmax(score)_d, and its gradient (Cao et al. 2007, ListNet's top one)."""
    gates, sizes, starts = weights.compute_gates(examples.query_features), examples.sizes, examples.starts
    gate_per_document = np.repeat(gates, sizes, axis=0).T  # [E, n]
    scores = (weights.expert_weights @ (gate_per_document * examples.scores)) + weights.document_weights @ examples.document_features
    scores -= np.repeat(np.maximum.reduceat(scores, starts), sizes)
    exponentials = np.exp(scores)
    totals = np.add.reduceat(exponentials, starts)
    value = float((np.log(totals) - np.add.reduceat(examples.targets * scores, starts)).mean())
    errors = (exponentials / np.repeat(totals, sizes) - examples.targets) / len(examples)  # [n]
    score_gradients = np.add.reduceat(errors * examples.scores, starts, axis=1).T  # [Q, E]
    gate_gradients = gates * weights.expert_weights * score_gradients
    logit_gradients = gate_gradients - gates / len(weights.expert_weights) * gate_gradients.sum(axis=1, keepdims=True)
    expert_gradients = (gates * score_gradients).sum(axis=0)
    return value, FusionWeights(expert_gradients, logit_gradients.T @ examples.query_features, examples.document_features @ errors)


def fit_weights(examples: FusionExamples, strength: float | None, *, least_weight: float | None = None) -> FusionWeights:
    """Minimise the loss plus ½ · strength · (|W|² + |v|²) by L-BFGS; with strength None only the expert weights a are fitted.

    The expert weights are fitted first, alone, which is convex, and are at least `least_weight`; the others start at 0 from there.
    """
    experts, query_features = len(examples.scores), examples.query_features.shape[1]
    initial = FusionWeights(np.zeros(experts), np.zeros((experts, query_features)), np.zeros(len(examples.document_features)))
    strengths = np.full(len(initial.to_vector()), np.inf)
    strengths[:experts] = EXPERT_WEIGHT_L2
    experts_only = _minimize(initial, examples, strengths, least_weight)
    if strength is None:
        return experts_only
    strengths[experts:] = strength
    return _minimize(experts_only, examples, strengths)


def _minimize(initial: FusionWeights, examples: FusionExamples, strengths: Float64s, least: float | None = None) -> FusionWeights:
    """Minimise the loss from `initial`, by weights of at least `least`; a weight of infinite strength stays fixed."""
    is_free, values = np.isfinite(strengths), initial.to_vector()

    def objective(vector: Float64s) -> tuple[float, Float64s]:
        candidate = values.copy()
        candidate[is_free] = vector
        value, gradient = listwise_loss(initial.from_vector(candidate), examples)
        penalty = strengths[is_free] * vector
        return value + float(penalty @ vector) / 2, gradient.to_vector()[is_free] + penalty

    limits = {"maxiter": MAX_ITERATIONS, "maxfun": 2 * MAX_ITERATIONS}
    bounds = None if least is None else [(least, None)] * int(is_free.sum())
    solution = minimize(objective, values[is_free], jac=True, method="L-BFGS-B", bounds=bounds, options=limits)
    values[is_free] = solution.x
    return initial.from_vector(values)


@dataclass(frozen=True, eq=False)
class GatedFusion:
    """A fitted gated fusion."""

    scaler: FeatureScaler
    weights: FusionWeights
    word_counts: WordCounts | None = None

    def formula(self, texts: Mapping[str, str] | None = None) -> Callable[..., Hits]:
        """The fusion as a formula; `texts` maps query ids to their text, if it was learned with words."""

        def gated(lists: RankedLists, apart: bool = False) -> Hits:
            computed = features.compute_features(lists, self.word_counts, texts)
            return score_lists.combine(computed.documents, self.scores_per_list(computed), apart)

        return gated

    def scores_per_list(self, computed: FusionFeatures) -> Float64s:
        """Contribution of each list to each document's score [E, n]; features of all lists together are split evenly."""
        gates = self.weights.compute_gates(self.scaler.scale_query_features(computed.query_features))[computed.query_rows].T
        scores = (self.weights.expert_weights / self.scaler.list_spread)[:, None] * computed.scores
        document_scores = (self.weights.document_weights / self.scaler.document_deviation)[:, None] * computed.document_features
        per_list = document_scores[: -len(ALL_LISTS_FEATURES)].reshape(len(scores), len(HIT_FEATURES), -1).sum(axis=1)
        parts: Float64s = gates * scores + per_list + document_scores[-len(ALL_LISTS_FEATURES) :].sum(axis=0) / len(scores)
        return parts


def _divisor(values: Float64s) -> Float64s:
    return np.where(values > 0, values, 1.0)


L2_STRENGTHS = (0.01, 0.1, 1.0, 10.0)
FOLDS = 5


@dataclass(frozen=True, eq=False)
class FitResult:
    """Fitted weights, and details of the fit: number of queries, regularisation strength, held-out losses."""

    weights: tuple[float, ...]
    gated: GatedFusion | None
    details: Mapping[str, Any]


def learn_fusion(
    runs: Sequence[Run], qrels: Qrels, kind: str, *, depth: int, strength: float | None, seed: int, texts: Mapping[str, str] | None
) -> FitResult:
    """Fit a `linear` or `gated` fusion on the queries that have a relevant document in the first `depth` hits of some list.

    With strength None, the one of L2_STRENGTHS with the least loss in a cross-validation of FOLDS folds, shuffled by `seed`, is taken.
    """
    words = None if texts is None else WordCounts.from_texts(texts.values())
    scales, examples = build_examples(runs, qrels, depth, words, texts)
    facts: dict[str, Any] = {"queries": len(examples), "seed": seed}
    if kind == "linear":
        weights = fit_weights(examples, None)
        return FitResult(tuple((weights.expert_weights / scales.list_spread).tolist()), None, facts)
    if strength is None:
        losses = compute_held_out_losses(examples, (None, *L2_STRENGTHS), seed)
        strength = min(L2_STRENGTHS, key=lambda one: losses[one])
        facts["held-out loss"] = {"linear" if one is None else f"strength {one:g}": loss for one, loss in losses.items()}
    facts["strength"] = strength
    weights = fit_weights(examples, strength)
    return FitResult((), GatedFusion(scales, weights, words), facts)


def compute_held_out_losses(examples: FusionExamples, strengths: Sequence[float | None], seed: int) -> dict[float | None, float]:
    """Mean cross-validated loss of each strength; None is the plain weighted sum."""
    totals: dict[float | None, float] = dict.fromkeys(strengths, 0.0)
    for rest, own in split_folds(examples, seed):
        for strength in strengths:
            totals[strength] += listwise_loss(fit_weights(rest, strength), own)[0] * len(own) / len(examples)
    return totals


def split_folds(examples: FusionExamples, seed: int) -> Iterator[tuple[FusionExamples, FusionExamples]]:
    """For each of FOLDS folds, shuffled by `seed`, the other queries and its own; nothing for a single query."""
    folds = min(FOLDS, len(examples))
    fold = np.random.default_rng(seed).permutation(len(examples)) % max(folds, 2)
    for one in range(folds if folds > 1 else 0):
        yield examples.subset(fold != one), examples.subset(fold == one)


def build_examples(
    runs: Sequence[Run], qrels: Qrels, depth: int, words: WordCounts | None, texts: Mapping[str, str] | None
) -> tuple[FeatureScaler, FusionExamples]:
    """Training examples of the queries that have a relevant document in the first `depth` hits of some list, and their scales."""
    queries = [query for query in qrels if any(query in run.query_rows for run in runs)]
    names, blocks = formulas.align_runs(runs, queries)
    ids = Ids.from_strings(names)
    parts: list[tuple[NDArray[Any], ...]] = []
    used_queries: list[str] = []
    for lists in blocks:
        computed = features.compute_features(lists, words, texts)
        within_depth = computed.best_rank <= depth
        query_rows, width = computed.query_rows[within_depth], max(len(names), 1)
        gains = np.zeros(len(query_rows))
        for row, query in enumerate(lists[0].queries):
            _fill_gains(gains, computed.documents[within_depth], row * width, ids, qrels[query])
        totals = np.bincount(query_rows, gains, minlength=len(lists[0].queries))
        has_gain = totals > 0
        used_queries += [query for query, is_used in zip(lists[0].queries, has_gain.tolist(), strict=True) if is_used]
        rows = has_gain[query_rows]
        spreads = np.stack([one.first_scores() - one.last_scores() for one in lists], axis=1)
        sizes = np.bincount(query_rows, minlength=len(has_gain))[has_gain]
        selected = np.flatnonzero(within_depth)[rows]
        targets = (gains / np.where(has_gain, totals, 1.0)[query_rows])[rows]
        of_documents = (computed.scores[:, selected], computed.document_features[:, selected])
        parts.append((*of_documents, computed.query_features[has_gain], spreads[has_gain], targets, sizes))
    if not parts or not sum(len(part[5]) for part in parts):
        raise DataError(f"no query has a relevant document among the first {depth} of any run; are the judgements of these queries?")
    scores, document_features, query_features, spreads, targets, sizes = (
        np.concatenate(arrays, axis=1 if index < 2 else 0) for index, arrays in enumerate(zip(*parts, strict=True))
    )
    list_spread, document_deviation = _divisor(spreads.mean(axis=0)), _divisor(document_features.std(axis=1))
    scaler = FeatureScaler(list_spread, document_deviation, query_features.mean(axis=0), _divisor(query_features.std(axis=0)))
    scores /= list_spread[:, None]
    document_features /= document_deviation[:, None]
    scaled_features = scaler.scale_query_features(query_features)
    return scaler, FusionExamples(scores, document_features, scaled_features, np.cumsum(sizes) - sizes, targets, used_queries)


def _fill_gains(gains: Float64s, documents: NDArray[np.int64], first: int, ids: Ids, judgements: Mapping[str, int]) -> None:
    """Set the gains of a query's relevant documents among `documents`; a gain is a grade above 0, as in nDCG."""
    relevant = [(name, grade) for name, grade in judgements.items() if grade > 0]
    codes = ids.lookup([name for name, _ in relevant])
    for code, (_, grade) in zip(codes.tolist(), relevant, strict=True):
        row = int(np.searchsorted(documents, first + code)) if code >= 0 else len(documents)
        if row < len(documents) and documents[row] == first + code:
            gains[row] = grade


def gated_to_dict(gated_fusion: GatedFusion) -> dict[str, Any]:
    """A gated fusion as plain numbers for JSON."""
    scales, words = gated_fusion.scaler, gated_fusion.word_counts
    return {
        "scales": {
            "lists": scales.list_spread.tolist(),
            "evidence": scales.document_deviation.tolist(),
            "mean": scales.query_mean.tolist(),
            "deviation": scales.query_deviation.tolist(),
        },
        "experts": gated_fusion.weights.expert_weights.tolist(),
        "gate": gated_fusion.weights.gate_weights.tolist(),
        "evidence": gated_fusion.weights.document_weights.tolist(),
        "words": None if words is None else {"queries": words.queries, "counts": words.counts},
    }


def gated_from_dict(values: Mapping[str, Any], lists: int) -> GatedFusion:
    """A gated fusion of so many lists from `gated_to_dict`'s numbers; ValueError, KeyError or TypeError if they do not fit."""
    words = values["words"]
    evidence, situation = features.count_features(lists, words is not None)
    shapes = {"lists": (lists,), "evidence": (evidence,), "mean": (situation,), "deviation": (situation,)}
    scales = FeatureScaler(*(_finite_array(values["scales"][name], shape) for name, shape in shapes.items()))  # in the order of the fields
    weight_shapes = {"experts": (lists,), "gate": (lists, situation), "evidence": (evidence,)}
    weights = FusionWeights(*(_finite_array(values[name], shape) for name, shape in weight_shapes.items()))
    if words is None:
        return GatedFusion(scales, weights)
    counts = {str(word): int(count) for word, count in words["counts"].items()}
    return GatedFusion(scales, weights, WordCounts(counts, int(words["queries"])))


def _finite_array(values: Any, shape: tuple[int, ...]) -> Float64s:
    array = np.array(values, dtype=np.float64)
    if array.shape != shape or not np.isfinite(array).all():
        raise ValueError(f"expected finite numbers {shape}")
    return array
