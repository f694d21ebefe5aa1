"""Chance without state: 64 random bits for each place, a pure function of the seed and of what the place is.

So a text meets the same fate whatever the batch, the order, the process, or the step a run was continued from.
"""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Bits: TypeAlias = npt.NDArray[np.uint64]
Numbers: TypeAlias = npt.NDArray[np.int64]

STRIDE = 0x9E3779B97F4A7C15
FIRST, SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
HALF = np.uint64(32)
LOW = np.uint64(0xFFFFFFFF)


def keys(seed: int, epoch: int, copy: int, texts: Numbers) -> Bits:
    """[B] the key of each text; `copy` tells apart what is drawn for it more than once in an epoch."""
    mixed = np.zeros(1, dtype=np.uint64)
    for part in (seed, epoch, copy):
        mixed = bits(mixed, np.array([part], dtype=np.int64))
    return bits(mixed, texts)


def bits(keys: Bits, places: Numbers) -> Bits:
    """[n] the bits at a place of a key's sequence: SplitMix64, Steele et al. 2014, read at any place.

    >>> bits(np.zeros(1, dtype=np.uint64), np.array([0]))
    array([16294208416658607535], dtype=uint64)
    """
    mixed = keys + (places.astype(np.uint64) + np.uint64(1)) * np.uint64(STRIDE)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * FIRST
    mixed = (mixed ^ (mixed >> np.uint64(27))) * SECOND
    return np.asarray(mixed ^ (mixed >> np.uint64(31)))


def upper(drawn: Bits, limits: npt.ArrayLike) -> Numbers:
    """[n] whole numbers from 0 to below `limits` (less than 2**32), evenly, from the upper half of the bits."""
    return (((drawn >> HALF) * np.asarray(limits, dtype=np.uint64)) >> HALF).astype(np.int64)


def lower(drawn: Bits, limits: npt.ArrayLike) -> Numbers:
    """The same from the lower half, which knows nothing of the upper."""
    return (((drawn & LOW) * np.asarray(limits, dtype=np.uint64)) >> HALF).astype(np.int64)
