"""Worker threads compute alone, and no other thread notices."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch

from moeir.backbones.prefetch import map_batches
from moeir.indexes.two_step import run_on_threads
from moeir.kernels.precision import full_precision
from moeir.retrieval.latency import limit_threads


def count_in_new_thread():
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(torch.get_num_threads).result()


@pytest.mark.parametrize("runs", [run_on_threads, lambda work, threads: list(map_batches(work, range(threads), threads))])
def test_a_thread_that_starts_while_others_compute_alone_has_all_threads(runs):
    counts, both_alone = [], Barrier(2, timeout=60)

    def count(_):
        both_alone.wait()  # a thread that starts in the moment in which another becomes alone would be alone, too
        counts.append((torch.get_num_threads(), count_in_new_thread()))

    with limit_threads(3):
        runs(count, 2)
        assert counts == [(1, 3), (1, 3)]
        assert (torch.get_num_threads(), count_in_new_thread()) == (3, 3)


def test_full_precision_lasts_until_the_last_thread_leaves_it():
    setting = torch.backends.mkldnn.matmul
    before, setting.fp32_precision = setting.fp32_precision, "bf16"
    first, second = full_precision(torch.device("cpu")), full_precision(torch.device("cpu"))
    try:
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert setting.fp32_precision == "ieee"
        second.__exit__(None, None, None)
        assert setting.fp32_precision == "bf16"
    finally:
        setting.fp32_precision = before
