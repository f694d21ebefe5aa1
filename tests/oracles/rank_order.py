"""The order of ranks, by Python's own sort."""

import numpy as np


def rank_order(hits: dict[str, float]) -> list[str]:
    """Ids, best first: score descending as float32, then the id's bytes descending."""
    return sorted(hits, key=lambda document: (np.float32(hits[document]), document.encode()), reverse=True)
