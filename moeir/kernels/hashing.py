"""Hashing of integers to pseudo-random integers: the same choice for a text on any device and in any batch."""

from torch import Tensor


def splitmix64(numbers: Tensor) -> Tensor:
    """SplitMix64's finaliser on int64, with wrap-around (Steele et al. 2014).

    >>> import torch
    >>> hash_integers(torch.tensor([-7046029254386353131])) - (16294208416658607535 - 2**64)
    tensor([0])
    """
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):
        numbers = (numbers ^ _shift_right(numbers, shift)) * factor
    return numbers ^ _shift_right(numbers, 31)


def _shift_right(numbers: Tensor, bits: int) -> Tensor:
    """Logical right shift: zeros are shifted in, regardless of the sign."""
    return (numbers >> bits) & ((1 << (64 - bits)) - 1)
