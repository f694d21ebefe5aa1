"""Ensembles of rerankers: a formula combines scores [M, n] of the documents of one query, in float64, into [n].

LCE (Gao et al. 2021) combines BERT, RoBERTa and ELECTRA without a formula; each function here is an `--ensemble`.
"""

import numpy as np
import numpy.typing as npt
import scipy

Floats = npt.NDArray[np.float64]


def zscore(scores: Floats) -> Floats:
    """Mean of scores standardised reranker by reranker over the query's documents; if all are equal, each counts 0.

    >>> zscore(np.array([[1.0, 3.0], [10.0, 10.0]])).tolist()
    [-0.5, 0.5]
    """
    return np.asarray(np.nan_to_num(scipy.stats.zscore(scores, axis=1)).mean(axis=0))


def mean(scores: Floats) -> Floats:
    """Mean of the raw scores.

    >>> mean(np.array([[1.0, 3.0], [10.0, 10.0]])).tolist()
    [5.5, 6.5]
    """
    return np.asarray(scores.mean(axis=0))
