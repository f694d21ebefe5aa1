"""Prefetching and background writing: order, depth, errors at the right item, and no thread left."""

import threading
import time

import pytest
import torch

from moeir.backbones.prefetch import background_writer, map_batches, prefetch


def threads():
    return [one.name for one in threading.enumerate() if one.name.startswith(("batches", "writing", "model"))]


def test_items_are_walked_over_in_a_thread_and_not_far_ahead():
    produced = []

    def items():
        for number in range(20):
            produced.append((number, threading.current_thread() is threading.main_thread()))
            yield number

    for number in prefetch(items(), depth=2):
        time.sleep(0.001)
        assert number <= len(produced) - 1 <= number + 3
    assert produced == [(number, False) for number in range(20)] and threads() == []


def test_nothing_is_walked_over_and_what_is_left_early_stops():
    assert list(prefetch([])) == []
    iterator = prefetch(iter(range(1000)))
    assert next(iterator) == 0
    iterator.close()
    assert threads() == []


def test_an_error_comes_where_its_item_would():
    def items():
        yield from (1, 2, 3)
        raise ValueError("the fourth")

    items_read = []
    with pytest.raises(ValueError, match="the fourth"):
        items_read.extend(prefetch(items()))
    assert threads() == []
    for item in (iterator := prefetch(items())):
        items_read.append(item)
        if item == 3:
            iterator.close()
    assert items_read[-3:] == [1, 2, 3]


def test_work_behind_is_done_in_order_by_one_thread():
    done = []
    with background_writer() as submit:
        for number in range(9):
            submit(lambda number=number: done.append((number, threading.current_thread().name)))
            assert len(done) >= number  # all before it
    assert [number for number, _ in done] == list(range(9)) and len({name for _, name in done}) == 1
    assert threads() == []


def test_nothing_is_begun_behind_work_that_failed():
    done = []

    def failing():
        time.sleep(0.01)
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"), background_writer() as submit:
        submit(lambda: done.append(1))
        submit(failing)
        submit(lambda: done.append(2))
    assert done == [1] and threads() == []
    with pytest.raises(OSError, match="disk full"), background_writer() as submit:
        submit(failing)
    with pytest.raises(KeyboardInterrupt), background_writer() as submit:
        submit(lambda: done.append(3))
        raise KeyboardInterrupt
    assert done == [1, 3] and threads() == []


def test_batches_are_run_at_once_in_order_in_the_callers_precision():
    weight, together = torch.nn.Parameter(torch.ones(4, 4)), threading.Barrier(3, timeout=20)

    def run(number):
        if number < 3:
            together.wait()  # three threads are here at once
        product = torch.ones(1, 4) @ weight
        return number, product.dtype, product.requires_grad, torch.get_num_threads()

    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert list(map_batches(run, iter(range(9)), 3)) == [(number, torch.bfloat16, False, 1) for number in range(9)]
    assert [one[1] for one in map_batches(run, range(3, 5), 2)] == [torch.float32] * 2
    assert threads() == []


def test_with_one_thread_batches_run_in_the_callers():
    weight = torch.nn.Parameter(torch.ones(4, 4))
    results = map_batches(
        lambda number: (threading.current_thread() is threading.main_thread(), (weight * number).requires_grad), [1, 2], 1
    )
    assert next(results) == (True, False)
    assert torch.is_grad_enabled()  # also while the rest waits
    assert list(results) == [(True, False)]


@pytest.mark.parametrize("count", [1, 2])
def test_an_error_of_a_batch_is_raised_and_no_thread_is_left(count):
    def run(number):
        if number == 3:
            raise ValueError("the fourth")
        return number

    before, done = torch.get_num_threads(), []
    with pytest.raises(ValueError, match="the fourth"):
        for number in map_batches(run, range(100), count):
            done.append(number)
    assert done == [0, 1, 2] and threads() == [] and torch.get_num_threads() == before


def test_batches_that_nobody_wants_are_not_run():
    started = []
    results = map_batches(lambda number: started.append(number) or number, iter(range(1000)), 2)
    assert next(results) == 0
    results.close()
    assert len(started) < 10 and threads() == []
