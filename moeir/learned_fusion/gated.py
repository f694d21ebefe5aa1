"""Learned fusion: a weighted sum of scores, and a gated one whose expert weights depend on the query, plus document features.

    score(q, d) = Σ_e E · softmax(W z(q))_e · a_e · s_e(q, d)  +  v · x(q, d)

s: scores, a missing document has the list's K-th; z: query features; x: document features (`features`). With W = 0 and v = 0 this is
the weighted sum of CAME's Table 4. The weights are fitted with the listwise softmax loss on judged queries.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from moeir.learned_fusion import features
from moeir.learned_fusion.features import HIT_FEATURES, ALL_LISTS_FEATURES, FusionFeatures, WordCounts
from moeir.records import lists as score_lists
from moeir.records.lists import Float64s, Hits, ScoreLists

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

    @classmethod
    def fit(cls, lists: Float64s, evidence: Float64s, situation: Float64s) -> "FeatureScaler":
        """Scales from score ranges [Q, E], document features [F, n] and query features [Q, Z] of many queries."""
        return cls(_divisor(lists.mean(axis=0)), _divisor(evidence.std(axis=1)), situation.mean(axis=0), _divisor(situation.std(axis=0)))

    def scale_query_features(self, values: Float64s) -> Float64s:
        """Standardised query features z [Q, Z]."""
        bounded: Float64s = np.clip((values - self.query_mean) / self.query_deviation, -MAX_DEVIATIONS, MAX_DEVIATIONS)
        return bounded


@dataclass(frozen=True, eq=False)
class FusionExamples:
    """Training examples: scaled scores [E, n] and document features [F, n], scaled query features [Q, Z].

    starts [Q]: first document of each query; targets [n] sum to 1 for each query.
    """

    scores: Float64s
    document_features: Float64s
    query_features: Float64s
    starts: NDArray[np.int64]
    targets: Float64s

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Number of documents of each query [Q]."""
        return np.diff(np.append(self.starts, len(self.targets)))

    def subset(self, mask: NDArray[np.bool_]) -> "FusionExamples":
        """The queries where `mask` [Q] is true."""
        rows, sizes = np.repeat(mask, self.sizes), self.sizes[mask]
        starts = np.cumsum(sizes) - sizes
        return FusionExamples(self.scores[:, rows], self.document_features[:, rows], self.query_features[mask], starts, self.targets[rows])


@dataclass(frozen=True, eq=False)
class FusionWeights:
    """a [E], W [E, Z] and v [F]."""

    expert_weights: Float64s
    gate_weights: Float64s
    document_weights: Float64s

    @classmethod
    def zeros(cls, experts: int, situation: int, evidence: int) -> "FusionWeights":
        """Initial weights."""
        return cls(np.zeros(experts), np.zeros((experts, situation)), np.zeros(evidence))

    def to_vector(self) -> Float64s:
        """All weights as one vector."""
        return np.concatenate([self.expert_weights, self.gate_weights.ravel(), self.document_weights])

    def from_vector(self, vector: Float64s) -> "FusionWeights":
        """Weights of the same shapes from one vector."""
        first, last = len(self.expert_weights), len(self.expert_weights) + self.gate_weights.size
        return FusionWeights(vector[:first], vector[first:last].reshape(self.gate_weights.shape), vector[last:])

    def compute_gates(self, situation: Float64s) -> Float64s:
        """E · softmax(W z) [Q, E]: 1 for every expert where z or W is 0."""
        return len(self.expert_weights) * _softmax(situation @ self.gate_weights.T)


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
    return value, FusionWeights((gates * score_gradients).sum(axis=0), logit_gradients.T @ examples.query_features, examples.document_features @ errors)


def fit_weights(examples: FusionExamples, strength: float | None) -> FusionWeights:
    """Minimise the loss plus ½ · strength · (|W|² + |v|²) by L-BFGS; with strength None only the expert weights a are fitted.

    The expert weights are fitted first, alone, which is convex; the others start at 0 from there.
    """
    initial = FusionWeights.zeros(len(examples.scores), examples.query_features.shape[1], len(examples.document_features))
    strengths = np.full(len(initial.to_vector()), np.inf)
    strengths[: len(initial.expert_weights)] = EXPERT_WEIGHT_L2
    experts_only = _minimize(initial, examples, strengths)
    if strength is None:
        return experts_only
    strengths[len(initial.expert_weights) :] = strength
    return _minimize(experts_only, examples, strengths)


def _minimize(initial: FusionWeights, examples: FusionExamples, strengths: Float64s) -> FusionWeights:
    """Minimise the loss from `initial`; a weight of infinite strength stays fixed."""
    is_free, values = np.isfinite(strengths), initial.to_vector()

    def objective(vector: Float64s) -> tuple[float, Float64s]:
        candidate = values.copy()
        candidate[is_free] = vector
        value, gradient = listwise_loss(initial.from_vector(candidate), examples)
        penalty = strengths[is_free] * vector
        return value + float(penalty @ vector) / 2, gradient.to_vector()[is_free] + penalty

    solution = minimize(objective, values[is_free], jac=True, method="L-BFGS-B", options={"maxiter": MAX_ITERATIONS, "maxfun": 2 * MAX_ITERATIONS})
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

        def gated(lists: Sequence[Hits | ScoreLists], apart: bool = False) -> Hits:
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


def _softmax(values: Float64s) -> Float64s:
    exponentials = np.exp(values - values.max(axis=1, keepdims=True))
    shares: Float64s = exponentials / exponentials.sum(axis=1, keepdims=True)
    return shares


def _divisor(values: Float64s) -> Float64s:
    return np.where(values > 0, values, 1.0)
