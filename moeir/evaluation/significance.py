"""Significance tests, effect sizes and confidence intervals of two systems, and corrections for multiple comparisons."""

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

from moeir.errors import DataError

RESAMPLES = 10_000
_NUMBERS_PER_BATCH = 2**22  # numbers in memory at once


def paired_t_test(first: Mapping[str, float], second: Mapping[str, float]) -> float:
    """Two-sided p-value of Student's paired t-test over the values of the same queries.

    1 if there is no difference, or fewer than two queries.

    >>> round(paired_t_test({"q1": 0.5, "q2": 0.4, "q3": 0.9}, {"q1": 0.3, "q2": 0.3, "q3": 0.6}), 4)
    0.0742
    """
    differences = _differences(first, second)
    if len(differences) < 2 or not differences.any():
        return 1.0
    spread = float(differences.std(ddof=1))
    if spread == 0.0:
        return 0.0
    statistic = float(differences.mean()) / (spread / math.sqrt(len(differences)))
    return float(2.0 * stdtr(len(differences) - 1, -abs(statistic)))


def randomisation_test(first: Mapping[str, float], second: Mapping[str, float], seed: int = 42) -> float:
    """Two-sided p-value of Fisher's paired randomisation test: share of random sign flips with a mean difference as large.

    10,000 seeded draws plus the observed one, so never 0 (Phipson and Smyth 2010).

    >>> randomisation_test({"a": 0.5, "b": 0.4}, {"a": 0.5, "b": 0.4})
    1.0
    """
    differences = _differences(first, second)
    if not differences.any():
        return 1.0
    observed, generator, as_large = abs(differences.sum()), np.random.default_rng(seed), 0
    for count in _batch_sizes(len(differences)):
        signs = 2.0 * generator.integers(0, 2, (count, len(differences)), dtype=np.int8) - 1.0
        as_large += int((abs(signs @ differences) >= observed * (1 - 1e-12)).sum())
    return (as_large + 1) / (RESAMPLES + 1)


def bootstrap_test(first: Mapping[str, float], second: Mapping[str, float], seed: int = 42) -> float:
    """Two-sided p-value of the paired bootstrap test over queries, shifted to no difference (Sakai 2006).

    The statistic is Student's t; 10,000 seeded samples plus the observed one.

    >>> bootstrap_test({"a": 0.5, "b": 0.4}, {"a": 0.5, "b": 0.4})
    1.0
    """
    differences = _differences(first, second)
    if len(differences) < 2 or not differences.any():
        return 1.0
    observed, as_large = abs(_t_statistics(differences[None])[0]), 0
    for sample in _bootstrap_samples(differences - differences.mean(), seed):
        as_large += int((abs(_t_statistics(sample)) >= observed).sum())
    return (as_large + 1) / (RESAMPLES + 1)


def confidence_interval(values: Sequence[float] | NDArray[np.float64], level: float = 0.95) -> tuple[float, float]:
    """Confidence interval of a mean over queries by Student's t; of zero width for fewer than two values.

    >>> confidence_interval([0.0, 1.0, 0.5, 0.5])
    (-0.1497, 1.1497)
    """
    exact = np.asarray(values, dtype=np.float64)
    mean = math.fsum(exact) / len(exact) if len(exact) else math.nan
    if len(exact) < 2:
        return mean, mean
    half_width = float(stdtrit(len(exact) - 1, 0.5 + level / 2)) * float(exact.std(ddof=1)) / math.sqrt(len(exact))
    return mean - half_width, mean + half_width


def effect_size(first: Mapping[str, float], second: Mapping[str, float]) -> float:
    """Mean difference over the standard deviation of differences, second less first (Cohen's d of paired values).

    >>> round(effect_size({"a": 0.25, "b": 0.5}, {"a": 0.5, "b": 1.0}), 3)
    2.121
    """
    differences = -_differences(first, second)
    spread = float(differences.std(ddof=1)) if len(differences) > 1 else 0.0
    return float(differences.mean()) / spread if spread else (math.copysign(math.inf, differences.sum()) if differences.any() else 0.0)


def correct_p_values(values: Sequence[float], method: str) -> list[float]:
    """p-values of several comparisons, adjusted: bonferroni, holm (family-wise error rate), bh (false discovery rate).

    Holm 1979; Benjamini and Hochberg 1995.

    >>> [correct_p_values([0.01, 0.04, 0.03], method) for method in ("bonferroni", "holm", "bh")]
    [[0.03, 0.12, 0.09], [0.03, 0.06, 0.06], [0.03, 0.04, 0.04]]
    """
    exact, count = np.asarray(values, dtype=np.float64), len(values)
    order = np.argsort(exact, kind="stable")
    adjusted = exact[order]
    if method == "bonferroni":
        adjusted = adjusted * count
    elif method == "holm":
        adjusted = np.maximum.accumulate(adjusted * np.arange(count, 0, -1))
    elif method == "bh":
        adjusted = np.minimum.accumulate((adjusted * count / np.arange(1, count + 1))[::-1])[::-1]
    adjusted_in_order = np.empty(count)
    adjusted_in_order[order] = np.minimum(adjusted, 1.0)
    return [round(value, 15) for value in adjusted_in_order.tolist()]


TESTS = {"t": paired_t_test, "randomisation": randomisation_test, "bootstrap": bootstrap_test}
CORRECTIONS = ("none", "bonferroni", "holm", "bh")


def _differences(first: Mapping[str, float], second: Mapping[str, float]) -> NDArray[np.float64]:
    if first.keys() != second.keys():
        raise DataError(f"a paired test needs the same queries on both sides; {len(first.keys() ^ second.keys())} are on one side only")
    return np.array([first[query] - second[query] for query in first])


def _batch_sizes(width: int) -> list[int]:
    """Batch sizes that add up to RESAMPLES, each small enough for memory."""
    most = max(1, _NUMBERS_PER_BATCH // max(width, 1))
    return [min(most, RESAMPLES - done) for done in range(0, RESAMPLES, most)]


def _bootstrap_samples(values: NDArray[np.float64], seed: int) -> Iterator[NDArray[np.float64]]:
    generator = np.random.default_rng(seed)
    yield from (values[generator.integers(0, len(values), (count, len(values)))] for count in _batch_sizes(len(values)))


def _t_statistics(samples: NDArray[np.float64]) -> NDArray[np.float64]:
    """Student's t of each row; infinite if all its values are equal and not 0."""
    means, spread = samples.mean(axis=1), samples.std(axis=1, ddof=1) / math.sqrt(samples.shape[1])
    with np.errstate(divide="ignore", invalid="ignore"):
        statistics: NDArray[np.float64] = np.nan_to_num(means / spread, nan=0.0)
    return statistics
