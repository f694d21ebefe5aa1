"""What a step needs is made in a thread while the steps before it are computed."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

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
