"""Integers that look drawn at random, each a function of another: a choice that depends on a text alone, on any device."""

from torch import Tensor


def hash_integers(numbers: Tensor) -> Tensor:
    """SplitMix64's finaliser on int64, wrapping around (Steele et al. 2014).

    >>> import torch
    >>> hash_integers(torch.tensor([-7046029254386353131])) - (16294208416658607535 - 2**64)
    tensor([0])
    """
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):
        numbers = (numbers ^ _shift_right(numbers, shift)) * factor
    return numbers ^ _shift_right(numbers, 31)


def _shift_right(numbers: Tensor, bits: int) -> Tensor:
    """To the right, zeros following, whatever the sign."""
    return (numbers >> bits) & ((1 << (64 - bits)) - 1)
