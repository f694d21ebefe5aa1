"""Prefetched batches: in order, from any step on, with their errors, in a thread that ends with the training."""

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
    """A sampler that records the requested steps and their threads, and fails at one step."""

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
    sampler = Watched()
    batches = Batches(sampler, texts, 9)
    for step in (4, 5, 6, 7, 8):
        batch = batches.at(step)
        assert batch.drawn == sampler._plan.at(step)
        same(batch[1:3], texts.read(batch.drawn))
        assert len(sampler.asked) <= step - 4 + 1 + STEPS_AHEAD
    assert sampler.asked == [(step, "batches") for step in (4, 5, 6, 7, 8)]
    assert not threads()


def test_any_other_step_can_be_asked_for(texts):
    sampler = Watched()
    batches = Batches(sampler, texts, 9)
    assert [batches.at(step).drawn for step in (0, 1, 7, 2, 8, 8)] == [sampler._plan.at(step) for step in (0, 1, 7, 2, 8, 8)]


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
    samplers = tuple(planned(examples(count), queries=2, negatives=3, seed=1, place="x") for count in (8, 12))
    multi_sampler, seeds, generator = Sets(samplers, (1.0, 1.0), 1), [], np.random.default_rng
    monkeypatch.setattr(np.random, "default_rng", lambda seed: (seeds.append(tuple(seed)), generator(seed))[1])
    for step in range(2 * multi_sampler.steps_per_epoch):
        multi_sampler.at(step)
    assert sorted(seeds) == sorted([*[(1, epoch) for epoch in (0, 1)] * 2, *((1, epoch, 2) for epoch in (0, 1))])
