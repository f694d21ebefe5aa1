"""Whether the difference between two systems could be chance."""

import math
from collections.abc import Mapping

import numpy as np
from scipy.special import stdtr

from moeir.errors import DataError


def paired_t(first: Mapping[str, float], second: Mapping[str, float]) -> float:
    """Two-sided p-value of Student's paired t-test over the values of the same queries.

    Without any difference, and with fewer than two queries, nothing speaks against chance: 1.

    >>> round(paired_t({"q1": 0.5, "q2": 0.4, "q3": 0.9}, {"q1": 0.3, "q2": 0.3, "q3": 0.6}), 4)
    0.0742
    """
    if first.keys() != second.keys():
        raise DataError(f"a paired test needs the same queries on both sides; {len(first.keys() ^ second.keys())} stand on one side only")
    differences = np.array([first[query] - second[query] for query in first])
    if len(differences) < 2 or not differences.any():
        return 1.0
    spread = float(differences.std(ddof=1))
    if spread == 0.0:
        return 0.0
    statistic = float(differences.mean()) / (spread / math.sqrt(len(differences)))
    return float(2.0 * stdtr(len(differences) - 1, -abs(statistic)))
