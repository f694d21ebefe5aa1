"""What `torch.compile` makes of a function, for counts alone: its forward and its backward pass are one launch each."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tests.device.fake_cuda import active_machine


class _Begin(torch.autograd.Function):
    """The inputs of a region, where its backward pass ends."""

    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(one.view_as(one) for one in inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        active_machine().counts.enter(None)
        return gradients


class _End(torch.autograd.Function):
    """The output of a region, where its backward pass begins."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, name: str) -> Tensor:
        ctx.name = name
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        active_machine().counts.enter(f"{ctx.name} backward")
        return gradient, None


def compile_for_counts(function: Callable[..., Tensor] | None = None, **options: Any) -> Any:
    """In the place of `torch.compile`."""
    if function is None:
        return partial(compile_for_counts, **options)
    name = function.__name__

    def compiled(*arguments: Any) -> Tensor:
        tensors = [one for one in arguments if isinstance(one, Tensor)]
        replaced = iter(_Begin.apply(*tensors))
        counts = active_machine().counts
        counts.enter(name)
        try:
            output = function(*(next(replaced) if isinstance(one, Tensor) else one for one in arguments))
        finally:
            counts.enter(None)
        return _End.apply(output, name)

    return compiled
