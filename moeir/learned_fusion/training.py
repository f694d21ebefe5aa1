"""Fit a fusion on judged queries: training examples, choice of the regularisation strength, and (de)serialisation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeir import fusion
from moeir.errors import DataError
from moeir.learned_fusion import features, gated
from moeir.learned_fusion.features import WordCounts
from moeir.learned_fusion.gated import FusionExamples, GatedFusion, FeatureScaler, FusionWeights
from moeir.records.ids import Ids
from moeir.records.lists import Float64s
from moeir.records.qrels import Qrels
from moeir.records.runs import Run

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
    scales, examples = _build_examples(runs, qrels, depth, words, texts)
    facts: dict[str, Any] = {"queries": len(examples), "seed": seed}
    if kind == "linear":
        weights = gated.fit_weights(examples, None)
        return FitResult(tuple((weights.expert_weights / scales.list_spread).tolist()), None, facts)
    if strength is None:
        losses = compute_held_out_losses(examples, (None, *L2_STRENGTHS), seed)
        strength = min(L2_STRENGTHS, key=lambda one: losses[one])
        facts["held-out loss"] = {"linear" if one is None else f"strength {one:g}": loss for one, loss in losses.items()}
    facts["strength"] = strength
    weights = gated.fit_weights(examples, strength)
    return FitResult((), GatedFusion(scales, weights, words), facts)


def compute_held_out_losses(examples: FusionExamples, strengths: Sequence[float | None], seed: int) -> dict[float | None, float]:
    """Mean cross-validated loss of each strength; None is the plain weighted sum."""
    folds = min(FOLDS, len(examples))
    fold = np.random.default_rng(seed).permutation(len(examples)) % max(folds, 2)
    totals: dict[float | None, float] = dict.fromkeys(strengths, 0.0)
    for one in range(folds if folds > 1 else 0):
        rest, own = examples.subset(fold != one), examples.subset(fold == one)
        for strength in strengths:
            totals[strength] += gated.listwise_loss(gated.fit_weights(rest, strength), own)[0] * len(own) / len(examples)
    return totals


def _build_examples(
    runs: Sequence[Run], qrels: Qrels, depth: int, words: WordCounts | None, texts: Mapping[str, str] | None
) -> tuple[FeatureScaler, FusionExamples]:
    """Scaler, and scaled training examples."""
    queries = [query for query in qrels if any(query in run.query_rows for run in runs)]
    names, blocks = fusion.align_runs(runs, queries)
    ids = Ids.from_strings(names)
    parts: list[tuple[Float64s, Float64s, Float64s, Float64s, Float64s, NDArray[np.int64]]] = []
    for lists in blocks:
        computed = features.compute_features(lists, words, texts)
        within_depth = computed.best_rank <= depth
        query_rows, width = computed.query_rows[within_depth], max(len(names), 1)
        gains = np.zeros(len(query_rows))
        for row, query in enumerate(lists[0].queries):
            _fill_gains(gains, computed.documents[within_depth], row * width, ids, qrels[query])
        totals = np.bincount(query_rows, gains, minlength=len(lists[0].queries))
        has_gain = totals > 0
        rows = has_gain[query_rows]
        spreads = np.stack([one.first_scores() - one.last_scores() for one in lists], axis=1)
        sizes = np.bincount(query_rows, minlength=len(has_gain))[has_gain]
        selected = np.flatnonzero(within_depth)[rows]
        targets = (gains / np.where(has_gain, totals, 1.0)[query_rows])[rows]
        parts.append(
            (computed.scores[:, selected], computed.document_features[:, selected], computed.query_features[has_gain], spreads[has_gain], targets, sizes)
        )
    if not parts or not sum(len(part[5]) for part in parts):
        raise DataError(f"no query has a relevant document among the first {depth} of any run; are the judgements of these queries?")
    scores, evidence = (np.concatenate([part[side] for part in parts], axis=1) for side in (0, 1))
    situation, spreads, targets, sizes = (np.concatenate([part[side] for part in parts]) for side in (2, 3, 4, 5))
    scales = FeatureScaler.fit(spreads, evidence, situation)
    scores /= scales.list_spread[:, None]
    evidence /= scales.document_deviation[:, None]
    return scales, FusionExamples(scores, evidence, scales.scale_query_features(situation), np.cumsum(sizes) - sizes, targets)


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
    words = None if gated_fusion.word_counts is None else {"queries": gated_fusion.word_counts.queries, "counts": gated_fusion.word_counts.counts}
    scales = gated_fusion.scaler
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
        "words": words,
    }


def gated_from_dict(values: Mapping[str, Any], lists: int) -> GatedFusion:
    """A gated fusion of so many lists from `gated_to_dict`'s numbers; ValueError, KeyError or TypeError if they do not fit."""
    evidence, situation = features.feature_names([""] * lists, values["words"] is not None)
    shapes = {"lists": (lists,), "evidence": (len(evidence),), "mean": (len(situation),), "deviation": (len(situation),)}
    scales = FeatureScaler(*(_finite_array(values["scales"][name], shape) for name, shape in shapes.items()))  # in the order of the fields
    gate = _finite_array(values["gate"], (lists, len(situation)))
    weights = FusionWeights(_finite_array(values["experts"], (lists,)), gate, _finite_array(values["evidence"], (len(evidence),)))
    words = values["words"]
    counts = None if words is None else {str(word): int(count) for word, count in words["counts"].items()}
    return GatedFusion(scales, weights, None if counts is None else WordCounts(counts, int(words["queries"])))


def _finite_array(values: Any, shape: tuple[int, ...]) -> Float64s:
    array = np.array(values, dtype=np.float64)
    if array.shape != shape or not np.isfinite(array).all():
        raise ValueError(f"expected finite numbers {shape}")
    return array
