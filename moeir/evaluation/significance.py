"""Significance tests of two systems, corrections for multiple comparisons, and confidence intervals."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import scipy
from numpy.typing import NDArray

from moeir.errors import DataError

RESAMPLES = 10_000
_NUMBERS_PER_BATCH = 2**22  # numbers in memory at once


def format_p(p: float) -> str:
    """A p-value as tables show it: three digits, never 0.

    >>> format_p(0.0312), format_p(0.0)
    ('0.031', '<0.001')
    """
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def paired_t_test(first: Mapping[str, float], second: Mapping[str, float]) -> float:
    """Two-sided p-value of Student's paired t-test over the values of the same queries.

    1 if there is no difference, or fewer than two queries.

    >>> round(paired_t_test({"q1": 0.5, "q2": 0.4, "q3": 0.9}, {"q1": 0.3, "q2": 0.3, "q3": 0.6}), 4)
    0.0742
    """
    differences = _compute_differences(first, second)
    if len(differences) < 2 or not differences.any():
        return 1.0
    if (differences == differences[0]).all():
        return 0.0
    return float(scipy.stats.ttest_1samp(differences, 0.0).pvalue)


def randomisation_test(first: Mapping[str, float], second: Mapping[str, float], seed: int = 42) -> float:
    """Two-sided p-value of Fisher's paired randomisation test: share of sign flips with a mean difference as large.

    All flips of up to 13 queries; else 10,000 seeded draws plus the observed one, so never 0 (Phipson and Smyth 2010).

    >>> randomisation_test({"a": 0.5, "b": 0.4}, {"a": 0.5, "b": 0.4})
    1.0
    """
    differences = _compute_differences(first, second)
    if len(differences) < 2 or not differences.any():
        return 1.0
    drawn = scipy.stats.permutation_test(
        (differences,),
        lambda flipped, axis: abs(flipped.mean(axis)),
        permutation_type="samples",
        alternative="greater",
        vectorized=True,
        n_resamples=RESAMPLES,
        batch=max(1, _NUMBERS_PER_BATCH // len(differences)),
        rng=np.random.default_rng(seed),
    )
    return float(drawn.pvalue)


def confidence_interval(values: Sequence[float] | NDArray[np.float64]) -> tuple[float, float]:
    """95 % confidence interval of a mean over queries by Student's t; of zero width for fewer than two values.

    Values from 0 to 1 get an interval within 0 and 1, that of the mean's logit (delta method), so it is not symmetric.

    >>> confidence_interval([0.0, 1.0, 0.5, 0.5]), confidence_interval([0.0, 2.0, 1.0, 1.0])
    ((0.0692, 0.9308), (-0.2992, 2.2992))
    """
    exact = np.asarray(values, dtype=np.float64)
    mean = math.fsum(exact) / len(exact) if len(exact) else math.nan
    if len(exact) < 2:
        return mean, mean
    half_width = float(scipy.special.stdtrit(len(exact) - 1, 0.975)) * float(exact.std(ddof=1)) / math.sqrt(len(exact))
    if 0.0 < mean < 1.0 and half_width > 0.0 and exact.min() >= 0.0 and exact.max() <= 1.0:
        center, reach = scipy.special.logit(mean), half_width / (mean * (1.0 - mean))
        return float(scipy.special.expit(center - reach)), float(scipy.special.expit(center + reach))
    return mean - half_width, mean + half_width


def correct_p_values(values: Sequence[float], method: str) -> list[float]:
    """p-values of several comparisons, adjusted: bonferroni or holm (Holm 1979).

    >>> [correct_p_values([0.01, 0.04, 0.03], method) for method in ("bonferroni", "holm")]
    [[0.03, 0.12, 0.09], [0.03, 0.06, 0.06]]
    """
    exact, count = np.asarray(values, dtype=np.float64), len(values)
    if method == "bonferroni":
        exact = np.minimum(exact * count, 1.0)
    elif method == "holm":
        order = np.argsort(exact, kind="stable")
        exact[order] = np.minimum(np.maximum.accumulate(exact[order] * np.arange(count, 0, -1)), 1.0)
    return [round(value, 15) for value in exact.tolist()]


TESTS = {"t": paired_t_test, "randomisation": randomisation_test}
CORRECTIONS = {"none": "uncorrected", "bonferroni": "Bonferroni", "holm": "Holm"}  # as the heads of columns name them


def _compute_differences(first: Mapping[str, float], second: Mapping[str, float]) -> NDArray[np.float64]:
    if first.keys() != second.keys():
        raise DataError(f"a paired test needs the same queries on both sides; {len(first.keys() ^ second.keys())} are on one side only")
    return np.array([first[query] - second[query] for query in first])
