"""One positive scale for the scores of each expert, fitted on judged queries: a weighted sum whose overall factor is free.

The weights are those of `linear_weights`, but positive, so that no expert's order is turned round. The overall factor is fixed by a
geometric mean of 1.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from moeir.fusion import linear_weights
from moeir.fusion.linear_weights import FusionExamples
from moeir.fusion.score_lists import Float64s
from moeir.records.qrels import Qrels
from moeir.records.runs import Run

FIT_DEPTH = 100  # documents of each list that scales are fitted on
LEAST_SHARE = 0.01  # of the greatest weight: an expert that helps nothing still has a scale above 0
SEED = 42  # of the folds


@dataclass(frozen=True, eq=False)
class ScaleFitter:
    """Training examples of some queries, from which scales can be fitted on all of them or on all but a fold."""

    examples: FusionExamples

    @classmethod
    def from_runs(cls, runs: Sequence[Run], qrels: Qrels) -> "ScaleFitter":
        """Examples of the queries that have a relevant document among the first FIT_DEPTH of some run; DataError if there is none."""
        return cls(linear_weights.build_examples(runs, qrels, FIT_DEPTH))

    def fit(self) -> list[float]:
        """The scale of each run's scores, fitted on all examples."""
        return _fit_scales(self.examples)

    def fit_folds(self) -> Iterator[tuple[list[float], Sequence[str]]]:
        """For each fold of a cross-validation the scales fitted on the others, and the fold's queries."""
        for rest, own in linear_weights.split_folds(self.examples, SEED):
            yield _fit_scales(rest), own.queries


def _fit_scales(examples: FusionExamples) -> list[float]:
    weights = linear_weights.fit_weights(examples, least_weight=0.0)
    return normalise_scales(np.maximum(weights, LEAST_SHARE * weights.max()) / examples.list_spread)


def normalise_scales(scales: Float64s) -> list[float]:
    """Scales with a geometric mean of 1, to four significant digits; 1 for each if they are 0.

    >>> normalise_scales(np.array([1.0, 4.0])), normalise_scales(np.zeros(2))
    ([0.5, 2.0], [1.0, 1.0])
    """
    if not scales.all():
        return [1.0] * len(scales)
    return [float(f"{scale:.4g}") for scale in scales / np.exp(np.log(scales).mean())]
