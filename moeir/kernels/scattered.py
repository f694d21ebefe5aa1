"""Numbers as if drawn at random, each a function of the one it comes from: chance without a generator, on any device."""

from torch import Tensor

STEPS = ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15))


def scattered(numbers: Tensor) -> Tensor:
    """SplitMix64's finaliser on int64, wrapping around (Steele et al. 2014).

    >>> import torch
    >>> scattered(torch.tensor([-7046029254386353131])) - (16294208416658607535 - 2**64)
    tensor([0])
    """
    for places, factor in STEPS:
        numbers = (numbers ^ _shifted(numbers, places)) * factor
    return numbers ^ _shifted(numbers, 31)


def _shifted(numbers: Tensor, places: int) -> Tensor:
    """To the right, zeros following, whatever the sign."""
    return (numbers >> places) & ((1 << (64 - places)) - 1)
