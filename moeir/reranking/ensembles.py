"""Ensembles of rerankers: a formula combines scores [M, n] of the documents of one query, in float64, into [n].

LCE (Gao et al. 2021) combines BERT, RoBERTa and ELECTRA without a formula; each function here is an `--ensemble`.
"""

import numpy as np
import numpy.typing as npt
import scipy

from moeir.errors import UsageError

Floats = npt.NDArray[np.float64]


def zscore(scores: Floats) -> Floats:
    """Mean of scores standardised reranker by reranker over the query's documents; if all are equal, each counts 0.

    >>> zscore(np.array([[1.0, 3.0], [10.0, 10.0]])).tolist()
    [-0.5, 0.5]
    """
    centred = scores - scores.mean(axis=1, keepdims=True)
    spread = np.where(scores.max(axis=1) > scores.min(axis=1), scores.std(axis=1), 1.0)
    equal = scores.max(axis=1, keepdims=True) == scores.min(axis=1, keepdims=True)
    return np.asarray(np.where(equal, 0.0, centred / spread[:, None]).mean(axis=0))


def mean(scores: Floats) -> Floats:
    """Mean of the raw scores.

    >>> mean(np.array([[1.0, 3.0], [10.0, 10.0]])).tolist()
    [5.5, 6.5]
    """
    return np.asarray(scores.mean(axis=0))


def rrf(scores: Floats, *, constant: float = 60.0) -> Floats:
    """Sum of 1 / (constant + rank); equal scores share their mean rank. Cormack, Clarke and Büttcher 2009.

    >>> rrf(np.array([[3.0, 1.0, 2.0]]), constant=1).round(4).tolist()
    [0.5, 0.25, 0.3333]
    """
    if not constant >= 0:
        raise UsageError(f"rrf:constant={constant:g}: expected 0 or more")
    return np.asarray(sum(1.0 / (constant + scipy.stats.rankdata(-row)) for row in scores))
