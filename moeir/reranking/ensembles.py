"""Ensembles of rerankers: a formula combines scores [M, n] of the documents of one query, in float64, into [n].

LCE (Gao et al. 2021) combines BERT, RoBERTa and ELECTRA without a formula; each function here is an `--ensemble`.
"""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def zscore(scores: Floats) -> Floats:
    """Mean of scores standardised reranker by reranker over the query's documents; if all are equal, each counts 0.

    >>> zscore(np.array([[1.0, 3.0], [10.0, 10.0]])).tolist()
    [-0.5, 0.5]
    """
    centred = scores - scores.mean(axis=1, keepdims=True)
    equal = scores.max(axis=1, keepdims=True) == scores.min(axis=1, keepdims=True)
    return np.asarray(np.where(equal, 0.0, centred / np.where(equal, 1.0, scores.std(axis=1, keepdims=True))).mean(axis=0))


def mean(scores: Floats) -> Floats:
    """Mean of the raw scores.

    >>> mean(np.array([[1.0, 3.0], [10.0, 10.0]])).tolist()
    [5.5, 6.5]
    """
    return np.asarray(scores.mean(axis=0))
