"""Prefetched batches: in order, from any step on, with their errors, in a thread that ends with the training."""

import threading

import pytest

from moeir.architectures.initialize import build_checkpoint
from moeir.errors import DataError
from moeir.training.sampling import make_sampler
from moeir.training.token_cache import PREFETCH_STEPS, prefetch_batches
from tests.training.toy_examples import animal_text, assert_same_tokens, make_examples, single_part, tokenize_in_memory


def prefetch_threads():
    return [one for one in threading.enumerate() if one.name.startswith("batches")]


class RecordingSampler:
    """A sampler that records the requested steps and their threads, and fails at one step."""

    size, steps_per_epoch = 15, 3

    def __init__(self, fails=-1):
        self.requested, self.failing_step = [], fails
        self._sampler = make_sampler(make_examples(15), batch_size=4, negatives=3, seed=1, source="x")

    def batch_at(self, step):
        self.requested.append((step, threading.current_thread().name.split("_")[0]))
        if step == self.failing_step:
            raise DataError(f"step {step} cannot be")
        return self._sampler.batch_at(step)


@pytest.fixture
def texts(tiny_model):
    """The tokens of fifteen examples."""
    checkpoint = build_checkpoint(tiny_model, "dense:head=false", {"query_length": 9, "document_length": 14})
    return tokenize_in_memory(checkpoint, *({f"{side}{row}": animal_text(row) for row in range(17)} for side in "qd"))


def test_batches_come_in_order_from_wherever_a_training_goes_on(texts):
    sampler = RecordingSampler()
    batches = prefetch_batches(sampler, texts, 9)
    for step in (4, 5, 6, 7, 8):
        batch = batches.at(step)
        assert batch.ids == sampler._sampler.batch_at(step)
        assert_same_tokens((batch.queries, batch.documents), texts.read_batch(batch.ids))
        assert len(sampler.requested) <= step - 4 + 1 + PREFETCH_STEPS
    assert sampler.requested == [(step, "batches") for step in (4, 5, 6, 7, 8)]
    assert not prefetch_threads()


def test_an_error_in_the_thread_is_raised_where_its_step_is_asked_for(texts):
    batches = prefetch_batches(RecordingSampler(fails=2), texts, 9)
    assert [len(single_part(batches.at(step).queries)) for step in (0, 1)] == [4, 4]
    for _ in range(2):
        with pytest.raises(DataError, match="step 2 cannot be"):
            batches.at(2)
    assert not prefetch_threads()


def test_the_thread_ends_with_a_training_that_stops_early(texts):
    batches = prefetch_batches(RecordingSampler(), texts, 99)
    batches.at(0)
    assert len(prefetch_threads()) == 1
    del batches
    assert not prefetch_threads()
