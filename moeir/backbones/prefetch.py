"""Background threads: prefetching the inputs of coming steps, and writing the results of past ones."""

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any, TypeVar

Item = TypeVar("Item")


def prefetch_steps(make: Callable[[int], Item], first: int, last: int, *, depth: int = 2) -> Iterator[Item]:
    """Yield `make(step)` for the steps from `first` to below `last`, computed in a thread up to `depth` steps ahead.

    An error in the thread is raised when its step is consumed; the thread ends after the last step, or when the generator is closed.

    >>> list(prefetch_steps(lambda step: step * step, 2, 5))
    [4, 9, 16]
    """
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches") as pool:
        futures: deque[Future[Item]] = deque()
        try:
            for step in range(first, last):
                futures.append(pool.submit(make, step))
                if len(futures) > depth:
                    yield futures.popleft().result()
            while futures:
                yield futures.popleft().result()
        finally:
            for future in futures:
                future.cancel()


def prefetch(items: Iterable[Item], *, depth: int = 2) -> Iterator[Item]:
    """Iterate over items in a thread, up to `depth` items ahead.

    >>> list(prefetch(number * number for number in (2, 3, 4)))
    [4, 9, 16]
    """
    iterator, end = iter(items), object()
    prefetched: Any = prefetch_steps(lambda _: next(iterator, end), 0, sys.maxsize, depth=depth)
    with closing(prefetched):
        for item in prefetched:
            if item is end:
                return
            yield item


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
            last.append(pool.submit(work))

        yield submit
        while last:
            last.pop().result()
