"""Threads that run several operations of torch at once, each of which is computed by its thread alone."""

from threading import Lock, Thread

import torch

_setting = Lock()


def compute_alone() -> None:
    """Let torch compute what this new thread asks for without others; the number of threads elsewhere, which new threads take, stays."""
    with _setting:
        before = torch.get_num_threads()
        torch.set_num_threads(1)  # of this thread, and of all that start from now on
        restore = Thread(target=torch.set_num_threads, args=(before,))
        restore.start()
        restore.join()
