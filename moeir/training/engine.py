"""Engines: a step's batches forward and backward, in one process or, by torch's DistributedDataParallel, in several."""

import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TypeAlias

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from moeir.architectures.base import StepMetrics
from moeir.distributed import ProcessGroup

ComputeLoss: TypeAlias = Callable[[int], tuple[Tensor, StepMetrics, int]]  # of a batch, by its number: loss, metrics and tokens


class Engine:
    """Runs batches in one process; gradients add up in the parameters."""

    def __init__(self, compute_loss: ComputeLoss) -> None:
        self.compute_loss = compute_loss

    def run_batch(self, batch: int, *, batches: int = 1, is_last: bool = True) -> tuple[StepMetrics, int]:
        """Add the gradient of one of the `batches` of a step, whose losses are averaged; returns its metrics and tokens."""
        loss, metrics, tokens = self.compute_loss(batch)
        (loss / batches if batches > 1 else loss).backward()
        return metrics, tokens


class DataParallel(Engine):
    """Runs batches in several processes: gradients are summed over all of them during the backward pass of a step's last batch.

    A parameter without gradient in every process, as that of an expert that no text chose, stays without: each step's graph is searched for
    those. Of the model it knows the trained `parameters` alone, which become those of the main process in all.
    """

    def __init__(self, compute_loss: ComputeLoss, parameters: Sequence[nn.Parameter], group: ProcessGroup) -> None:
        super().__init__(compute_loss)
        self._group, self._module = group, _LossModule(compute_loss, parameters)
        warnings.filterwarnings("ignore", "find_unused_parameters=True was specified")  # there may be none in many a step
        options = {"find_unused_parameters": True, "gradient_as_bucket_view": True}
        with group.watch("the weights"):
            connection = group.connections["host" if parameters[0].device.type == "cpu" else "device"]
            self._parallel = DistributedDataParallel(self._module, process_group=connection, **options)

    def run_batch(self, batch: int, *, batches: int = 1, is_last: bool = True) -> tuple[StepMetrics, int]:
        with self._group.watch(f"the gradients of batch {batch + 1}"), nullcontext() if is_last else self._parallel.no_sync():
            loss = self._parallel(batch)
            (loss * (self._group.size / batches)).backward()  # torch takes the mean over processes
        return self._module.facts


class _LossModule(nn.Module):
    """The loss of a batch as a module of the trained parameters; its metrics and tokens are left in `facts`."""

    facts: tuple[StepMetrics, int]

    def __init__(self, compute_loss: ComputeLoss, parameters: Sequence[nn.Parameter]) -> None:
        super().__init__()
        self.trained, self._compute_loss = nn.ParameterList(parameters), compute_loss

    def forward(self, batch: int) -> Tensor:
        loss, metrics, tokens = self._compute_loss(batch)
        self.facts = metrics, tokens
        return loss
