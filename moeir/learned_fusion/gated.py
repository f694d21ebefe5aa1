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
from moeir.learned_fusion.features import OF_A_HIT, OF_ALL_HITS, Features, Words
from moeir.records import lists as score_lists
from moeir.records.lists import Exact, Hits, Lists

FREE = 1e-6  # keeps the expert weights finite where one list is always right
FARTHEST = 4.0  # standardised query features are clipped here
ITERATIONS = 300


@dataclass(frozen=True, eq=False)
class Scales:
    """Feature scales: mean score range of each list [E], deviation of document features [F], mean and deviation of query features [Z]."""

    lists: Exact
    evidence: Exact
    mean: Exact
    deviation: Exact

    @classmethod
    def of(cls, lists: Exact, evidence: Exact, situation: Exact) -> "Scales":
        """Scales from score ranges [Q, E], document features [F, n] and query features [Q, Z] of many queries."""
        return cls(_divisor(lists.mean(axis=0)), _divisor(evidence.std(axis=1)), situation.mean(axis=0), _divisor(situation.std(axis=0)))

    def situation(self, values: Exact) -> Exact:
        """Standardised query features z [Q, Z]."""
        bounded: Exact = np.clip((values - self.mean) / self.deviation, -FARTHEST, FARTHEST)
        return bounded


@dataclass(frozen=True, eq=False)
class Examples:
    """Training examples: scaled scores [E, n] and document features [F, n], scaled query features [Q, Z].

    starts [Q]: first document of each query; targets [n] sum to 1 for each query.
    """

    scores: Exact
    evidence: Exact
    situation: Exact
    starts: NDArray[np.int64]
    targets: Exact

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Number of documents of each query [Q]."""
        return np.diff(np.append(self.starts, len(self.targets)))

    def among(self, mask: NDArray[np.bool_]) -> "Examples":
        """The queries where `mask` [Q] is true."""
        rows, sizes = np.repeat(mask, self.sizes), self.sizes[mask]
        starts = np.cumsum(sizes) - sizes
        return Examples(self.scores[:, rows], self.evidence[:, rows], self.situation[mask], starts, self.targets[rows])


@dataclass(frozen=True, eq=False)
class Weights:
    """a [E], W [E, Z] and v [F]."""

    experts: Exact
    gate: Exact
    evidence: Exact

    @classmethod
    def zeros(cls, experts: int, situation: int, evidence: int) -> "Weights":
        """Initial weights."""
        return cls(np.zeros(experts), np.zeros((experts, situation)), np.zeros(evidence))

    def packed(self) -> Exact:
        """All weights as one vector."""
        return np.concatenate([self.experts, self.gate.ravel(), self.evidence])

    def unpacked(self, vector: Exact) -> "Weights":
        """Weights of the same shapes from one vector."""
        first, last = len(self.experts), len(self.experts) + self.gate.size
        return Weights(vector[:first], vector[first:last].reshape(self.gate.shape), vector[last:])

    def gates(self, situation: Exact) -> Exact:
        """E · softmax(W z) [Q, E]: 1 for every expert where z or W is 0."""
        return len(self.experts) * _softmax(situation @ self.gate.T)


def loss(weights: Weights, examples: Examples) -> tuple[float, Weights]:
    """Mean over queries of −Σ_d target_d · log softmax(score)_d, and its gradient (Cao et al. 2007, ListNet's top one)."""
    gates, sizes, starts = weights.gates(examples.situation), examples.sizes, examples.starts
    gate_per_document = np.repeat(gates, sizes, axis=0).T  # [E, n]
    scores = (weights.experts @ (gate_per_document * examples.scores)) + weights.evidence @ examples.evidence
    scores -= np.repeat(np.maximum.reduceat(scores, starts), sizes)
    exponentials = np.exp(scores)
    totals = np.add.reduceat(exponentials, starts)
    value = float((np.log(totals) - np.add.reduceat(examples.targets * scores, starts)).mean())
    errors = (exponentials / np.repeat(totals, sizes) - examples.targets) / len(examples)  # [n]
    score_gradients = np.add.reduceat(errors * examples.scores, starts, axis=1).T  # [Q, E]
    gate_gradients = gates * weights.experts * score_gradients
    logit_gradients = gate_gradients - gates / len(weights.experts) * gate_gradients.sum(axis=1, keepdims=True)
    return value, Weights((gates * score_gradients).sum(axis=0), logit_gradients.T @ examples.situation, examples.evidence @ errors)


def learned(examples: Examples, strength: float | None) -> Weights:
    """Minimise the loss plus ½ · strength · (|W|² + |v|²) by L-BFGS; with strength None only the expert weights a are fitted.

    The expert weights are fitted first, alone, which is convex; the others start at 0 from there.
    """
    initial = Weights.zeros(len(examples.scores), examples.situation.shape[1], len(examples.evidence))
    strengths = np.full(len(initial.packed()), np.inf)
    strengths[: len(initial.experts)] = FREE
    experts_only = _least(initial, examples, strengths)
    if strength is None:
        return experts_only
    strengths[len(initial.experts) :] = strength
    return _least(experts_only, examples, strengths)


def _least(initial: Weights, examples: Examples, strengths: Exact) -> Weights:
    """Minimise the loss from `initial`; a weight of infinite strength stays fixed."""
    is_free, values = np.isfinite(strengths), initial.packed()

    def objective(vector: Exact) -> tuple[float, Exact]:
        candidate = values.copy()
        candidate[is_free] = vector
        value, gradient = loss(initial.unpacked(candidate), examples)
        penalty = strengths[is_free] * vector
        return value + float(penalty @ vector) / 2, gradient.packed()[is_free] + penalty

    solution = minimize(objective, values[is_free], jac=True, method="L-BFGS-B", options={"maxiter": ITERATIONS, "maxfun": 2 * ITERATIONS})
    values[is_free] = solution.x
    return initial.unpacked(values)


@dataclass(frozen=True, eq=False)
class Gated:
    """A fitted gated fusion."""

    scales: Scales
    weights: Weights
    words: Words | None = None

    def merge(self, texts: Mapping[str, str] | None = None) -> Callable[..., Hits]:
        """The fusion as a formula; `texts` maps query ids to their text, if it was learned with words."""

        def gated(lists: Sequence[Hits | Lists], apart: bool = False) -> Hits:
            computed = features.of(lists, self.words, texts)
            return score_lists.added(computed.documents, self.parts(computed), apart)

        return gated

    def parts(self, computed: Features) -> Exact:
        """Contribution of each list to each document's score [E, n]; features of all lists together are split evenly."""
        gates = self.weights.gates(self.scales.situation(computed.situation))[computed.owners].T
        scores = (self.weights.experts / self.scales.lists)[:, None] * computed.scores
        document_scores = (self.weights.evidence / self.scales.evidence)[:, None] * computed.evidence
        per_list = document_scores[: -len(OF_ALL_HITS)].reshape(len(scores), len(OF_A_HIT), -1).sum(axis=1)
        parts: Exact = gates * scores + per_list + document_scores[-len(OF_ALL_HITS) :].sum(axis=0) / len(scores)
        return parts


def _softmax(values: Exact) -> Exact:
    exponentials = np.exp(values - values.max(axis=1, keepdims=True))
    shares: Exact = exponentials / exponentials.sum(axis=1, keepdims=True)
    return shares


def _divisor(values: Exact) -> Exact:
    return np.where(values > 0, values, 1.0)
