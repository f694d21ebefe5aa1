"""Fit a fusion on judged queries: training examples, choice of the regularisation strength, and (de)serialisation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeir import fusion
from moeir.errors import DataError
from moeir.learned_fusion import features, gated
from moeir.learned_fusion.features import Words
from moeir.learned_fusion.gated import Examples, Gated, Scales, Weights
from moeir.records.ids import Ids
from moeir.records.lists import Exact
from moeir.records.qrels import Qrels
from moeir.records.runs import Run

STRENGTHS = (0.01, 0.1, 1.0, 10.0)
FOLDS = 5


@dataclass(frozen=True, eq=False)
class Learned:
    """Fitted weights, and details of the fit: number of queries, regularisation strength, held-out losses."""

    weights: tuple[float, ...]
    gated: Gated | None
    facts: Mapping[str, Any]


def taught(
    runs: Sequence[Run], qrels: Qrels, kind: str, *, depth: int, strength: float | None, seed: int, texts: Mapping[str, str] | None
) -> Learned:
    """Fit a `linear` or `gated` fusion on the queries that have a relevant document in the first `depth` hits of some list.

    With strength None, the one of L2_STRENGTHS with the least loss in a cross-validation of FOLDS folds, shuffled by `seed`, is taken.
    """
    words = None if texts is None else Words.counted(texts.values())
    scales, examples = _examples(runs, qrels, depth, words, texts)
    facts: dict[str, Any] = {"queries": len(examples), "seed": seed}
    if kind == "linear":
        weights = gated.learned(examples, None)
        return Learned(tuple((weights.experts / scales.lists).tolist()), None, facts)
    if strength is None:
        losses = held_out(examples, (None, *STRENGTHS), seed)
        strength = min(STRENGTHS, key=lambda one: losses[one])
        facts["held-out loss"] = {"linear" if one is None else f"strength {one:g}": loss for one, loss in losses.items()}
    facts["strength"] = strength
    weights = gated.learned(examples, strength)
    return Learned((), Gated(scales, weights, words), facts)


def held_out(examples: Examples, strengths: Sequence[float | None], seed: int) -> dict[float | None, float]:
    """Mean cross-validated loss of each strength; None is the plain weighted sum."""
    folds = min(FOLDS, len(examples))
    fold = np.random.default_rng(seed).permutation(len(examples)) % max(folds, 2)
    totals: dict[float | None, float] = dict.fromkeys(strengths, 0.0)
    for one in range(folds if folds > 1 else 0):
        rest, own = examples.among(fold != one), examples.among(fold == one)
        for strength in strengths:
            totals[strength] += gated.loss(gated.learned(rest, strength), own)[0] * len(own) / len(examples)
    return totals


def _examples(
    runs: Sequence[Run], qrels: Qrels, depth: int, words: Words | None, texts: Mapping[str, str] | None
) -> tuple[Scales, Examples]:
    """Scaler, and scaled training examples."""
    queries = [query for query in qrels if any(query in run.places for run in runs)]
    names, blocks = fusion.aligned(runs, queries)
    ids = Ids.of(names)
    parts: list[tuple[Exact, Exact, Exact, Exact, Exact, NDArray[np.int64]]] = []
    for lists in blocks:
        computed = features.of(lists, words, texts)
        within_depth = computed.nearest <= depth
        query_rows, width = computed.owners[within_depth], max(len(names), 1)
        gains = np.zeros(len(query_rows))
        for row, query in enumerate(lists[0].queries):
            _mark(gains, computed.documents[within_depth], row * width, ids, qrels[query])
        totals = np.bincount(query_rows, gains, minlength=len(lists[0].queries))
        has_gain = totals > 0
        rows = has_gain[query_rows]
        spreads = np.stack([one.first() - one.last() for one in lists], axis=1)
        sizes = np.bincount(query_rows, minlength=len(has_gain))[has_gain]
        selected = np.flatnonzero(within_depth)[rows]
        targets = (gains / np.where(has_gain, totals, 1.0)[query_rows])[rows]
        parts.append(
            (computed.scores[:, selected], computed.evidence[:, selected], computed.situation[has_gain], spreads[has_gain], targets, sizes)
        )
    if not parts or not sum(len(part[5]) for part in parts):
        raise DataError(f"no query has a relevant document among the first {depth} of any run; are the judgements of these queries?")
    scores, evidence = (np.concatenate([part[side] for part in parts], axis=1) for side in (0, 1))
    situation, spreads, targets, sizes = (np.concatenate([part[side] for part in parts]) for side in (2, 3, 4, 5))
    scales = Scales.of(spreads, evidence, situation)
    scores /= scales.lists[:, None]
    evidence /= scales.evidence[:, None]
    return scales, Examples(scores, evidence, scales.situation(situation), np.cumsum(sizes) - sizes, targets)


def _mark(gains: Exact, documents: NDArray[np.int64], first: int, ids: Ids, judgements: Mapping[str, int]) -> None:
    """Set the gains of a query's relevant documents among `documents`; a gain is a grade above 0, as in nDCG."""
    relevant = [(name, grade) for name, grade in judgements.items() if grade > 0]
    codes = ids.places([name for name, _ in relevant])
    for code, (_, grade) in zip(codes.tolist(), relevant, strict=True):
        row = int(np.searchsorted(documents, first + code)) if code >= 0 else len(documents)
        if row < len(documents) and documents[row] == first + code:
            gains[row] = grade


def packed(gated_fusion: Gated) -> dict[str, Any]:
    """A gated fusion as plain numbers for JSON."""
    words = None if gated_fusion.words is None else {"queries": gated_fusion.words.queries, "counts": gated_fusion.words.counts}
    scales = gated_fusion.scales
    return {
        "scales": {
            "lists": scales.lists.tolist(),
            "evidence": scales.evidence.tolist(),
            "mean": scales.mean.tolist(),
            "deviation": scales.deviation.tolist(),
        },
        "experts": gated_fusion.weights.experts.tolist(),
        "gate": gated_fusion.weights.gate.tolist(),
        "evidence": gated_fusion.weights.evidence.tolist(),
        "words": words,
    }


def unpacked(values: Mapping[str, Any], lists: int) -> Gated:
    """A gated fusion of so many lists from `gated_to_dict`'s numbers; ValueError, KeyError or TypeError if they do not fit."""
    evidence, situation = features.names([""] * lists, values["words"] is not None)
    shapes = {"lists": (lists,), "evidence": (len(evidence),), "mean": (len(situation),), "deviation": (len(situation),)}
    scales = Scales(*(_numbers(values["scales"][name], shape) for name, shape in shapes.items()))  # in the order of the fields
    gate = _numbers(values["gate"], (lists, len(situation)))
    weights = Weights(_numbers(values["experts"], (lists,)), gate, _numbers(values["evidence"], (len(evidence),)))
    words = values["words"]
    counts = None if words is None else {str(word): int(count) for word, count in words["counts"].items()}
    return Gated(scales, weights, None if counts is None else Words(counts, int(words["queries"])))


def _numbers(values: Any, shape: tuple[int, ...]) -> Exact:
    array = np.array(values, dtype=np.float64)
    if array.shape != shape or not np.isfinite(array).all():
        raise ValueError(f"expected finite numbers {shape}")
    return array
