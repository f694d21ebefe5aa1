"""Background threads: reading ahead, running a model on several batches at once, writing what is done."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from contextvars import copy_context
from itertools import count, takewhile
from typing import Any, Generic, TypeVar

import torch

from moeir.kernels.worker_threads import compute_alone

Item = TypeVar("Item")
Result = TypeVar("Result")


def prefetch(items: Iterable[Item], *, depth: int = 2) -> Iterator[Item]:
    """Iterate over items in a thread, up to `depth` items ahead.

    An error in the thread is raised when its item is consumed; the thread ends after the last one, or when the generator is closed.

    >>> list(prefetch(number * number for number in (2, 3, 4)))
    [4, 9, 16]
    """
    iterator, end = iter(items), object()
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches") as pool:
        prefetched: Any = _iterate_results(pool, lambda _: next(iterator, end), count(), depth)
        with closing(prefetched):
            yield from takewhile(lambda item: item is not end, prefetched)


def _iterate_results(pool: ThreadPoolExecutor, function: Callable[[Any], Result], items: Iterable[Any], depth: int) -> Iterator[Result]:
    """`function(item)` of each item, in order, computed in the pool up to `depth` items ahead; those that are not wanted are cancelled."""
    futures: deque[Future[Result]] = deque()
    try:
        for item in items:
            futures.append(pool.submit(function, item))
            if len(futures) > depth:
                yield futures.popleft().result()
        while futures:
            yield futures.popleft().result()
    finally:
        for future in futures:
            future.cancel()


class StepPrefetcher(Generic[Item]):
    """`make(step)` of the steps below `steps`, computed in a thread up to `depth` steps ahead; fast for consecutive steps."""

    def __init__(self, make: Callable[[int], Item], steps: int, *, depth: int = 2) -> None:
        self._make, self._steps, self._depth, self._next_step = make, steps, depth, -1
        self._items: Iterator[Item] = iter(())

    def at(self, step: int) -> Item:
        """The value of a step; the thread ends after the last one."""
        if step != self._next_step:
            self._items = prefetch(map(self._make, range(step, max(self._steps, step + 1))), depth=self._depth)
        self._next_step = -1
        item = next(self._items)
        if step + 1 < self._steps:
            self._next_step = step + 1
        else:
            self._items = iter(())
        return item


def map_batches(run: Callable[[Item], Result], batches: Iterable[Item], threads: int) -> Iterator[Result]:
    """`run(batch)` of each batch without gradient, in order, on `threads` threads, each of which computes its operations alone.

    No thread waits for another between operations, and those in a compiled loop of one thread run at once. The precision of autocast is the
    caller's. With one thread: the caller's own, with as many threads inside an operation as torch is set to.

    >>> list(map_batches(lambda number: number * number, [2, 3, 4], 2))
    [4, 9, 16]
    """

    def run_batch(batch: Item) -> Result:
        with torch.no_grad():
            return run(batch)

    if threads == 1:
        yield from map(run_batch, batches)
        return
    enabled, dtype = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")

    def set_up_thread() -> None:
        compute_alone()
        torch.autocast("cpu", dtype=dtype, enabled=enabled).__enter__()  # until the thread ends, so that weights are cast once

    with ThreadPoolExecutor(threads, thread_name_prefix="model", initializer=set_up_thread) as pool:
        yield from _iterate_results(pool, run_batch, batches, threads)


@contextmanager
def background_writer() -> Iterator[Callable[[Callable[[], object]], None]]:
    """A function that submits tasks to a thread, which runs them one at a time and in order.

    It waits for the previous task and raises its error; no task starts after one that failed.

    >>> done = []
    >>> with background_writer() as submit:
    ...     submit(lambda: done.append(1))
    ...     submit(lambda: done.append(2))
    >>> done
    [1, 2]
    """
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="writing") as pool:
        last: list[Future[object]] = []

        def submit(work: Callable[[], object]) -> None:
            while last:
                last.pop().result()
            last.append(pool.submit(copy_context().run, work))

        yield submit
        while last:
            last.pop().result()
