"""The pre-training task: consecutive batches, counted matrix products, speed."""

import pytest
import torch
import torch.nn.functional as F

from moeir.pretraining.mlm import Mlm
from moeir.pretraining.task import PretrainingTask, measure_peak_flops
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


def plain(states, embedding, bias, targets):
    logits = F.linear(states, embedding, bias)
    return F.cross_entropy(logits, targets), (logits.argmax(1) == targets).sum()


def test_products_of_forward_and_backward_are_counted_once_each(monkeypatch):
    """Our loss computes its gradient's products in the forward pass, the plain one in the backward pass: the total is the same."""
    ours = task()
    ours.compute_loss(0)
    monkeypatch.setattr("moeir.pretraining.base.fused_linear_cross_entropy", plain)
    theirs = task()
    theirs.compute_loss(0)
    assert ours._first_step_flops == theirs._first_step_flops > 0


def test_counting_leaves_no_gradient_and_changes_none():
    counted, again = task(), task()
    loss, _, tokens = counted.compute_loss(0)
    assert all(parameter.grad is None for parameter in counted.model.parameters())
    loss.backward()
    again.compute_loss(0)
    later, _, _ = again.compute_loss(1)  # the second step is not counted
    later.backward()
    for one, other in zip(counted.model.parameters(), again.model.parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None) and (one.grad is None or torch.allclose(one.grad, other.grad, atol=1e-6))
    assert tokens == sum(map(len, toy_models.SPANS)) + sum(map(len, toy_models.CONTEXTS))


def test_batches_are_asked_for_once_each_from_wherever_a_training_goes_on():
    resumed = task()
    for step in (3, 4, 5):
        resumed.compute_loss(step)
    assert resumed._sampler.requested_steps == [3, 4, 5]


def test_speed_is_said_of_the_steps_after_the_first():
    short = task()
    short.compute_loss(0)
    assert short.speed() == {}
    short.compute_loss(1)
    speed = short.speed()
    assert speed["share_of_peak"] == pytest.approx(speed["flops_per_second"] / speed["measured_peak"])
    assert speed["flops_per_second"] == pytest.approx(short._first_step_flops / short._first_step_tokens * speed["tokens_per_second"])


def test_the_peak_is_more_than_a_thousand_million_a_second():
    assert measure_peak_flops(torch.float32, torch.device("cpu")) > 1e9


def test_the_peak_of_a_cuda_device_is_of_a_larger_product_timed_when_it_is_done(monkeypatch):
    sizes, waited = [], []

    def drawn(*shape, device, dtype):
        sizes.append((shape, str(device), dtype))
        return torch.empty(shape, device="meta", dtype=dtype)

    monkeypatch.setattr(torch, "randn", drawn)
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    assert measure_peak_flops(torch.bfloat16, torch.device("cuda:1")) > 0
    assert sizes == [((8192, 8192), "cuda:1", torch.bfloat16)] * 2
    assert waited == [torch.device("cuda:1")] * 10
