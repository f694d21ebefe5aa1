"""A step's batches forward and backward, in one process or, by torch's DistributedDataParallel, in several."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, TypeAlias

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from moeir.distributed import ProcessGroup

ComputeLoss: TypeAlias = Callable[[int], tuple[Tensor, Any, int]]  # of a batch, by its number: loss, metrics and tokens


def run_batch(compute_loss: ComputeLoss, batch: int, *, batches: int = 1, is_last: bool = True) -> tuple[Any, int]:
    """Add the gradient of one of the `batches` of a step, whose losses are averaged; returns its metrics and tokens."""
    loss, metrics, tokens = compute_loss(batch)
    (loss / batches if batches > 1 else loss).backward()
    return metrics, tokens


class DataParallel(nn.Module):
    """Runs batches in several processes: gradients are summed over all of them during the backward pass of a step's last batch.

    A parameter without gradient in every process, as that of an expert that no text chose, stays without: each step's graph is searched for
    those. Of the model it knows the trained `parameters` alone, which become those of the main process in all.
    """

    def __init__(self, compute_loss: ComputeLoss, parameters: list[nn.Parameter], group: ProcessGroup) -> None:
        super().__init__()
        self.trained, self._compute_loss, self._group = nn.ParameterList(parameters), compute_loss, group
        connection = group.connections["host" if parameters[0].device.type == "cpu" else "device"]
        with group.watch("the weights"):
            parallel = DistributedDataParallel(self, process_group=connection, find_unused_parameters=True, gradient_as_bucket_view=True)
        self._parallel = [parallel]  # in a list, as it is no part of this module, but holds it

    def forward(self, batch: int) -> Tensor:
        """The loss of a batch; its metrics and tokens are left aside."""
        loss, *self._facts = self._compute_loss(batch)
        return loss

    def run_batch(self, batch: int, *, batches: int = 1, is_last: bool = True) -> tuple[Any, int]:
        """The function `run_batch` for several processes."""
        (parallel,) = self._parallel
        with self._group.watch(f"the gradients of batch {batch + 1}"), nullcontext() if is_last else parallel.no_sync():
            (parallel(batch) * (self._group.size / batches)).backward()  # torch takes the mean over processes
        metrics, tokens = self._facts
        return metrics, tokens
