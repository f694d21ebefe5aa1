"""Prefetching and background writing: order, depth, errors at the right item, and no thread left."""

import threading
import time

import pytest

from moeir.backbones.prefetch import background_writer, prefetch


def threads():
    return [one.name for one in threading.enumerate() if one.name.startswith(("batches", "writing"))]


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
