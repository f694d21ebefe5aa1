"""Counter-based random numbers: 64 random bits per counter, a pure function of seed and counter.

The choices for a text are the same whatever the device, the batch, the order, the process, or the step at which a run was resumed.
"""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from torch import Tensor


def splitmix64(numbers: Tensor) -> Tensor:
    """SplitMix64's finaliser on int64, with wrap-around (Steele et al. 2014).

    >>> import torch
    >>> splitmix64(torch.tensor([-7046029254386353131])) - (16294208416658607535 - 2**64)
    tensor([0])
    """
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):
        numbers = (numbers ^ _shift_right(numbers, shift)) * factor
    return numbers ^ _shift_right(numbers, 31)


def _shift_right(numbers: Tensor, bits: int) -> Tensor:
    """Logical right shift: zeros are shifted in, regardless of the sign."""
    return (numbers >> bits) & ((1 << (64 - bits)) - 1)


UInt64Array: TypeAlias = npt.NDArray[np.uint64]
Int64Array: TypeAlias = npt.NDArray[np.int64]

STRIDE = 0x9E3779B97F4A7C15
FIRST_MULTIPLIER, SECOND_MULTIPLIER = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
HALF_BITS = np.uint64(32)
LOW_MASK = np.uint64(0xFFFFFFFF)


def text_keys(seed: int, epoch: int, copy: int, texts: Int64Array) -> UInt64Array:
    """[B] the key of each text; `copy` distinguishes several random choices for it in one epoch."""
    mixed = np.zeros(1, dtype=np.uint64)
    for part in (seed, epoch, copy):
        mixed = random_bits(mixed, np.array([part], dtype=np.int64))
    return random_bits(mixed, texts)


def random_bits(keys: UInt64Array, counters: Int64Array) -> UInt64Array:
    """[n] random bits of a key's sequence at a counter: SplitMix64, Steele et al. 2014, with random access.

    >>> random_bits(np.zeros(1, dtype=np.uint64), np.array([0]))
    array([16294208416658607535], dtype=uint64)
    """
    mixed = keys + (counters.astype(np.uint64) + np.uint64(1)) * np.uint64(STRIDE)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * FIRST_MULTIPLIER
    mixed = (mixed ^ (mixed >> np.uint64(27))) * SECOND_MULTIPLIER
    return np.asarray(mixed ^ (mixed >> np.uint64(31)))


def randint_high(random_values: UInt64Array, limits: npt.ArrayLike) -> Int64Array:
    """[n] uniform integers from 0 to below `limits` (less than 2**32), from the upper half of the bits."""
    return (((random_values >> HALF_BITS) * np.asarray(limits, dtype=np.uint64)) >> HALF_BITS).astype(np.int64)


def randint_low(random_values: UInt64Array, limits: npt.ArrayLike) -> Int64Array:
    """[n] uniform integers from 0 to below `limits`, from the lower half of the bits, independent of the upper."""
    return (((random_values & LOW_MASK) * np.asarray(limits, dtype=np.uint64)) >> HALF_BITS).astype(np.int64)
