"""The pre-training task: consecutive batches."""

import torch

from moeir.pretraining.mlm import Mlm
from moeir.pretraining.task import PretrainingTask
from tests.pretraining import toy_models


class OneBatch:
    """A sampler that returns the same batch at every step."""

    steps, anchor_count, batch_size = 6, 4, 4

    def __init__(self):
        self.requested_steps = []

    def batch_at(self, step, rank=0, ranks=1):
        self.requested_steps.append(step)
        return toy_models.batch()


def task(seed=1):
    return PretrainingTask(toy_models.objective(Mlm, toy_models.architecture(), seed=seed), OneBatch(), torch.float32)


def test_batches_are_asked_for_once_each_from_wherever_a_training_goes_on():
    resumed = task()
    for step in (3, 4, 5):
        resumed.compute_loss(step)
    assert resumed._sampler.requested_steps == [3, 4, 5]
