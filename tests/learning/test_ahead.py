"""Batches made ahead of their steps: in order, from any step on, with their errors, in a thread that ends with the training."""

import threading

import numpy as np
import pytest

from moeir.architectures.starting import start
from moeir.errors import DataError
from moeir.learning.batches import Sets, planned
from moeir.learning.tokens import STEPS_AHEAD, Batches
from tests.learning.held import content, examples, held, same, whole


def threads():
    return [one for one in threading.enumerate() if one.name.startswith("batches")]


class Watched:
    """A plan that notes which steps are asked for and in which thread, and fails at one."""

    size, steps_per_epoch = 15, 3

    def __init__(self, fails=-1):
        self.asked, self.fails = [], fails
        self._plan = planned(examples(15), queries=4, negatives=3, seed=1, place="x")

    def at(self, step):
        self.asked.append((step, threading.current_thread().name.split("_")[0]))
        if step == self.fails:
            raise DataError(f"step {step} cannot be")
        return self._plan.at(step)


@pytest.fixture
def texts(tiny_model):
    """The tokens of fifteen examples."""
    checkpoint = start(tiny_model, "dense:head=false", {"query_length": 9, "document_length": 14})
    return held(checkpoint, *({f"{side}{row}": content(row) for row in range(17)} for side in "qd"))


def test_batches_come_in_order_from_wherever_a_training_goes_on(texts):
    plan = Watched()
    batches = Batches(plan, texts, 9)
    for step in (4, 5, 6, 7, 8):
        read = batches.at(step)
        assert read.drawn == plan._plan.at(step)
        same(read[1:3], texts.read(read.drawn))
        assert len(plan.asked) <= step - 4 + 1 + STEPS_AHEAD
    assert plan.asked == [(step, "batches") for step in (4, 5, 6, 7, 8)]
    assert not threads()


def test_any_other_step_can_be_asked_for(texts):
    plan = Watched()
    batches = Batches(plan, texts, 9)
    assert [batches.at(step).drawn for step in (0, 1, 7, 2, 8, 8)] == [plan._plan.at(step) for step in (0, 1, 7, 2, 8, 8)]


def test_an_error_in_the_thread_is_raised_where_its_step_is_asked_for(texts):
    batches = Batches(Watched(fails=2), texts, 9)
    assert [len(whole(batches.at(step).queries)) for step in (0, 1)] == [4, 4]
    for _ in range(2):
        with pytest.raises(DataError, match="step 2 cannot be"):
            batches.at(2)
    assert not threads()


def test_the_thread_ends_with_a_training_that_stops_early(texts):
    batches = Batches(Watched(), texts, 99)
    batches.at(0)
    assert len(threads()) == 1
    del batches
    assert not threads()


def test_an_epochs_order_is_made_once(monkeypatch):
    plans = tuple(planned(examples(count), queries=2, negatives=3, seed=1, place="x") for count in (8, 12))
    walk, made, generator = Sets(plans, (1.0, 1.0), 1), [], np.random.default_rng
    monkeypatch.setattr(np.random, "default_rng", lambda seed: (made.append(tuple(seed)), generator(seed))[1])
    for step in range(2 * walk.steps_per_epoch):
        walk.at(step)
    assert sorted(made) == sorted([*[(1, epoch) for epoch in (0, 1)] * 2, *((1, epoch, 2) for epoch in (0, 1))])
