"""Checks of stored representations of any kind: numbers that are not finite, texts of zeros, and experts whose vectors have collapsed."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

Report = Callable[[int | None, str, str], None]  # row of the text, None for all; kind of fault; message
TEXTS_AT_ONCE = 4096
COLLAPSED_COSINE = 0.99  # mean cosine of all pairs above which an expert counts as collapsed
MIN_VECTORS = 8  # fewest vectors for that


def check_rows(texts: Any, report: Report) -> None:
    """Report the faults of the values of each text, and the mean cosine of all pairs: the squared length of the mean unit vector."""
    unit_sum, count = np.zeros(1), 0
    for rows in torch.arange(len(texts)).split(TEXTS_AT_ONCE):
        part, first = texts.select(rows), int(rows[0])
        columns, starts = part.columns(), part.text_starts()
        values = columns[texts.value_column].numpy().astype(np.float32)
        numbers = values.reshape(len(values), -1)
        owners = np.arange(len(part)) if starts is None else np.repeat(np.arange(len(part)), starts.diff().numpy())
        sizes = np.bincount(owners, minlength=len(part)) * numbers.shape[1]
        broken = np.bincount(owners, (~np.isfinite(numbers)).sum(1), len(part)).astype(int)
        squares = np.square(numbers, dtype=np.float64).sum(1)
        text_squares = np.bincount(owners, squares, len(part))
        for row in np.flatnonzero((broken > 0) | (text_squares == 0)).tolist():
            if broken[row]:
                report(first + row, "not-finite", f"{broken[row]} of {sizes[row]} numbers are not finite")
            else:
                report(first + row, "no-terms" if values.ndim == 1 else "zero-vector", "has no number other than 0")
        usable = np.isfinite(squares) & (squares > 0)
        if values.ndim == 1:  # weights of terms: one vector for each text
            units = values[usable] / np.sqrt(text_squares[owners[usable]])
            total, count = np.bincount(columns["terms"].numpy()[usable], units), count + len(np.unique(owners[usable]))
        else:
            total, count = (values[usable] / np.sqrt(squares[usable, None])).sum(0), count + int(usable.sum())
        width = max(len(unit_sum), len(total))
        unit_sum = np.pad(unit_sum, (0, width - len(unit_sum))) + np.pad(total, (0, width - len(total)))
    if count >= MIN_VECTORS and (cosine := float(((unit_sum / count) ** 2).sum())) > COLLAPSED_COSINE:
        report(None, "collapsed", f"{count:,} vectors, mean cosine of two {cosine:.4f}")
