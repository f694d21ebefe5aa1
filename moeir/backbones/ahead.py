"""What a step needs is made in a thread while the steps before it are computed, and what it leaves is written while the next is."""

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any, TypeVar

Made = TypeVar("Made")


def ahead(make: Callable[[int], Made], first: int, last: int, *, depth: int = 2) -> Iterator[Made]:
    """What `make` makes of the steps from `first` to below `last`, in a thread and up to `depth` steps ahead of its use.

    An error in the thread is raised where its step is asked for; the thread ends when the steps do, or when this is closed.

    >>> list(ahead(lambda step: step * step, 2, 5))
    [4, 9, 16]
    """
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches") as pool:
        waiting: deque[Future[Made]] = deque()
        try:
            for step in range(first, last):
                waiting.append(pool.submit(make, step))
                if len(waiting) > depth:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def walked_ahead(items: Iterable[Made], *, depth: int = 2) -> Iterator[Made]:
    """The same items, walked over in a thread and up to `depth` ahead of their use.

    >>> list(walked_ahead(number * number for number in (2, 3, 4)))
    [4, 9, 16]
    """
    walked, end = iter(items), object()
    made: Any = ahead(lambda _: next(walked, end), 0, sys.maxsize, depth=depth)
    with closing(made):
        for item in made:
            if item is end:
                return
            yield item


@contextmanager
def behind() -> Iterator[Callable[[Callable[[], object]], None]]:
    """A function that takes pieces of work, which are done in a thread, one at a time and in their order.

    It waits for the piece before, and raises its error; no piece is begun behind one that failed.

    >>> done = []
    >>> with behind() as later:
    ...     later(lambda: done.append(1))
    ...     later(lambda: done.append(2))
    >>> done
    [1, 2]
    """
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="writing") as pool:
        last: list[Future[object]] = []

        def later(work: Callable[[], object]) -> None:
            while last:
                last.pop().result()
            last.append(pool.submit(work))

        yield later
        while last:
            last.pop().result()
